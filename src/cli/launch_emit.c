/* ingot launch --emit: the file that lets a cluster start the supervisor, which starts the ranks. A row for each kind of
 * cluster.
 *
 *     slurm     an sbatch script: the supervisor runs in its allocation, with spare hosts that it has for itself; before
 *               the time limit the run saves, and the job is requeued
 *     k8s       an MPIJob of Kubernetes' MPI operator, whose launcher is the supervisor
 *     volcano   a Job of Volcano, which starts all pods or none; the same, with spare hosts
 */
#include <string.h>

#include "cli/launch.h"
#include "io/io.h"

/* ---- words ---------------------------------------------------------------------------------------- */
/* Appends a word, quoted for the shell. */
static void shell_quote(str *s, const char *word) {
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=:,+@%-";
    if (*word && !word[strspn(word, plain)]) {
        str_add(s, "%s", word);
        return;
    }
    str_add(s, "'");
    for (; *word; word++) {
        if (*word == '\'')
            str_add(s, "'\\''");
        else
            str_add(s, "%c", *word);
    }
    str_add(s, "'");
}

void launch_quote_command(char *const *word, int n, str *out) {
    for (int i = 0; i < n; i++) {
        if (i) str_add(out, " ");
        shell_quote(out, word[i]);
    }
}

/* ---- the command that the file starts ---------------------------------------------------------------- */
static int64_t hosts_needed(const launch_args *a) { return a->ranks / a->per_host; }

/* Hosts from a list, one per line: the first are used, the others are spares. @param list a shell command. */
static void add_host_lists(str *s, const launch_args *a, const char *list) {
    if (!a->spare_hosts) return;
    str_add(s, "hosts=$(%s | head -n %lld | sed 's/$/:%lld/' | paste -s -d , -)\n", list,
            (long long)hosts_needed(a), (long long)a->per_host);
    str_add(s, "spares=$(%s | tail -n +%lld | sed 's/$/:%lld/' | paste -s -d , -)\n", list,
            (long long)hosts_needed(a) + 1, (long long)a->per_host);
}

/* "ingot launch -n 16 ... -- train ...", with what was set of the supervisor's options. @param lists_hosts in the
 * variable that add_host_lists sets. */
static void add_launch(str *s, const launch_args *a, bool lists_hosts, char **argv, int argc) {
    const launch_args usual = LAUNCH_ARGS;
    str_add(s, "ingot launch -n %lld", (long long)a->ranks);
    if (lists_hosts) str_add(s, " --hosts \"$hosts\"");
    if (a->spare_hosts) str_add(s, " --spares \"$spares\"");
    if (a->restarts != usual.restarts) str_add(s, " --restarts %lld", (long long)a->restarts);
    if (a->restart_delay != usual.restart_delay)
        str_add(s, " --restart-delay %g", a->restart_delay);
    if (a->grace != usual.grace) str_add(s, " --grace %g", a->grace);
    if (a->doctor) str_add(s, " --doctor");
    if (a->doctor && a->doctor_seconds != usual.doctor_seconds)
        str_add(s, " --doctor-seconds %g", a->doctor_seconds);
    str_add(s, " -- ");
    launch_quote_command(argv, argc, s);
}

/* ---- Slurm ------------------------------------------------------------------------------------------------ */
static void emit_slurm(str *s, const launch_args *a, char **argv, int argc) {
    str_add(s, "#!/bin/bash\n");
    str_add(s, "#SBATCH --job-name=%s\n", a->name);
    str_add(s, "#SBATCH --nodes=%lld\n", (long long)(hosts_needed(a) + a->spare_hosts));
    str_add(s, "#SBATCH --ntasks-per-node=%lld\n", (long long)a->per_host);
    str_add(s, "#SBATCH --output=%s-%%j.log\n#SBATCH --open-mode=append\n", a->name);
    str_add(
        s,
        "# Two minutes before the time limit the run saves; the job is then queued again and continues.\n"
        "#SBATCH --signal=B:TERM@120\n#SBATCH --requeue\n"
        "# Add --time, --partition and --cpus-per-task as your cluster wants them.\n\n");
    add_host_lists(s, a, "scontrol show hostnames \"$SLURM_JOB_NODELIST\"");
    str_add(s, "stopped=\ntrap 'stopped=yes; kill -TERM \"$supervisor\"' TERM USR1\n");
    add_launch(s, a, a->spare_hosts > 0, argv, argc);
    str_add(s, " &\n"
               "supervisor=$!\n"
               "wait \"$supervisor\"\n"
               "code=$?\n"
               "if [ \"$stopped\" ]; then # that ended the wait, not the supervisor\n"
               "    wait \"$supervisor\"\n"
               "    code=$?\n"
               "    [ \"$code\" = 75 ] && scontrol requeue \"$SLURM_JOB_ID\"\n"
               "fi\n"
               "exit \"$code\"\n");
}

/* ---- Kubernetes -------------------------------------------------------------------------------------------- */
/* @param indent of "containers". @param command a shell script; NULL: the image's own. */
static void add_containers(str *s, const launch_args *a, int indent, const char *command) {
    if (command)
        str_add(s, "%*sterminationGracePeriodSeconds: 120 # the run saves meanwhile\n", indent, "");
    str_add(s, "%*scontainers:\n%*s- name: ingot\n%*simage: ", indent, "", indent + 2, "",
            indent + 4, "");
    io_json_quote(s, a->image); /* JSON's strings are YAML's too */
    str_add(s, "\n");
    if (!command) return;
    str_add(s, "%*scommand: [\"/bin/sh\", \"-c\", ", indent + 4, "");
    io_json_quote(s, command);
    str_add(s, "]\n");
}

static void add_role(str *s, const launch_args *a, const char *role, int64_t replicas,
                     const char *command) {
    str_add(s, "    %s:\n      replicas: %lld\n      template:\n        spec:\n", role,
            (long long)replicas);
    add_containers(s, a, 10, command);
}

/* The operator writes a hostfile and has mpirun find it: the supervisor needs no --hosts. */
static void emit_k8s(str *s, const launch_args *a, char **argv, int argc) {
    str command = { 0 };
    str_add(s,
            "# For the MPI operator: kubectl apply -f FILE. Add volumes for data and run.dir, and\n"
            "# resources, to both templates.\n"
            "apiVersion: kubeflow.org/v2beta1\n"
            "kind: MPIJob\n"
            "metadata:\n"
            "  name: %s\n"
            "spec:\n"
            "  slotsPerWorker: %lld\n"
            "  runPolicy:\n"
            "    cleanPodPolicy: Running\n"
            "  mpiReplicaSpecs:\n",
            a->name, (long long)a->per_host);
    str_add(&command, "exec ");
    add_launch(&command, a, false, argv, argc);
    add_role(s, a, "Launcher", 1, command.text);
    add_role(s, a, "Worker", hosts_needed(a), NULL);
    str_free(&command);
}

static void add_task(str *s, const launch_args *a, const char *name, int64_t replicas,
                     const char *policies, const char *command) {
    str_add(s, "    - name: %s\n      replicas: %lld\n%s      template:\n        spec:\n", name,
            (long long)replicas, policies);
    str_add(s, "          restartPolicy: OnFailure\n");
    add_containers(s, a, 10, command);
}

/* Volcano's plugins write the names of the workers to a file, and keys for ssh, over which mpirun reaches them. */
static void emit_volcano(str *s, const launch_args *a, char **argv, int argc) {
    str command = { 0 };
    int64_t workers = hosts_needed(a) + a->spare_hosts;
    str_add(
        s,
        "# For Volcano: kubectl apply -f FILE. The image needs sshd. Add volumes for data and run.dir, and\n"
        "# resources, to both templates.\n"
        "apiVersion: batch.volcano.sh/v1alpha1\n"
        "kind: Job\n"
        "metadata:\n"
        "  name: %s\n"
        "spec:\n"
        "  schedulerName: volcano\n"
        "  minAvailable: %lld # all pods or none\n"
        "  maxRetry: 10\n"
        "  plugins:\n"
        "    ssh: []\n"
        "    svc: []\n"
        "  policies:\n"
        "    - event: PodEvicted\n"
        "      action: RestartJob\n"
        "  tasks:\n",
        a->name, (long long)workers + 1);
    add_host_lists(&command, a, "cat /etc/volcano/worker.host");
    if (!a->spare_hosts)
        str_add(&command, "hosts=$(sed 's/$/:%lld/' /etc/volcano/worker.host | paste -s -d , -)\n",
                (long long)a->per_host);
    str_add(&command, "exec ");
    add_launch(&command, a, true, argv, argc);
    add_task(s, a, "launcher", 1,
             "      policies:\n        - event: TaskCompleted\n          action: CompleteJob\n",
             command.text);
    add_task(s, a, "worker", workers, "", "mkdir -p /run/sshd && exec /usr/sbin/sshd -D");
    str_free(&command);
}

/* ---- all of them ---------------------------------------------------------------------------------------------- */
static const struct emitter {
    const char *name;
    bool image, spares; /* needs the one, has the other */
    void (*write)(str *s, const launch_args *a, char **argv, int argc);
} emitters[] = { { "slurm", false, true, emit_slurm },
                 { "k8s", true, false, emit_k8s },
                 { "volcano", true, true, emit_volcano } };

static err check_job_name(const char *name) {
    size_t n = strlen(name);
    if (n && n <= 63 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n &&
        name[0] != '-')
        return OK;
    return err_hint(
        ERR_USAGE("--name: \"%.80s\" is not a name that Slurm and Kubernetes take", name),
        "use up to 63 lower-case letters, digits and -");
}

static err find_emitter(const char *name, const struct emitter **out) {
    str names = { 0 };
    for (size_t i = 0; i < COUNT_OF(emitters); i++) {
        if (!strcmp(name, emitters[i].name)) *out = &emitters[i];
        str_add(&names, "%s%s", i ? ", " : "", emitters[i].name);
    }
    err e = *out ? OK
                 : err_hint(ERR_USAGE("--emit: \"%.40s\" is not one of %s", name, names.text),
                            "--emit %s", emitters[0].name);
    str_free(&names);
    return e;
}

err launch_emit(const launch_args *a, int argc, char **argv) {
    const struct emitter *to = NULL;
    str text = { 0 };
    TRY(check_job_name(a->name));
    TRY(find_emitter(a->emit, &to));
    if (to->image && !a->image)
        return err_hint(ERR_USAGE("--emit %s needs --image", to->name),
                        "name a container image that has ingot and Open MPI");
    if (a->spare_hosts && !to->spares)
        return err_hint(
            ERR_USAGE("--spare-hosts: --emit %s has none: its operator names the hosts", to->name),
            "leave it out, or use --emit volcano");
    to->write(&text, a, argv, argc);
    fputs(text.text, stdout);
    str_free(&text);
    return OK;
}
