/* How the ranks of a job find one another over TCP.
 *
 * Every rank listens on a port of its own and sends it to rank 0, which answers with the addresses of all. Then each
 * connects to those of lower rank, so that every pair has one connection:
 *
 *     rank r -> 0      hello { magic, ranks, r, port }
 *     0 -> all         answer { magic, status }, and the addresses, as rank 0 saw them
 *     rank r -> s < r  hello
 *
 * An answer that is not WELCOME says why, so that every process names the mistake: two of one rank, or another number of
 * ranks. All waits share one deadline, are named in the log, and end with the first signal. A name that does
 * not resolve ends the wait sooner: it seldom begins to. */
#include "comm_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/wait.h"

#define MAGIC 0x326b6e72746f676eull /* "ngotrnk2" */
enum { NAP = 100 /* milliseconds */, RESOLVE_S = 15, REACH_S = 15, BIND_S = 5, HELLO_S = 5 };

typedef struct hello {
    uint64_t magic;
    uint32_t ranks, rank, port, unused;
} hello;
typedef enum { WELCOME, SAME_RANK, OTHER_RANKS } answer_status;
typedef struct answer {
    uint64_t magic;
    uint32_t status, detail; /* SAME_RANK: which; OTHER_RANKS: how many rank 0 expects */
} answer;
typedef struct rank_address { /* where a rank listens, as rank 0 sees it */
    struct sockaddr_in6 at;   /* large enough for both families */
} rank_address;

typedef struct meeting_state {
    int rank, ranks, port;
    const char *host; /* of rank 0 */
    int listener, own_port;
    int *fds;          /* [ranks] the connections; -1: none yet */
    rank_address *all; /* [ranks] */
    wait_state w;      /* for everything */
} meeting_state;

/* ---- sockets --------------------------------------------------------------------------------- */
/* Reads or writes all of it. @return false when the connection ends or the wait is over. */
static bool transfer_all(int fd, void *at, size_t n, bool writes, wait_state *w) {
    for (size_t done = 0; done < n;) {
        ssize_t k = writes ? send(fd, (char *)at + done, n - done, MSG_NOSIGNAL)
                           : recv(fd, (char *)at + done, n - done, 0);
        if (k > 0) {
            done += (size_t)k;
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EINTR) || wait_is_over(w)) return false;
        struct pollfd p = { .fd = fd, .events = writes ? POLLOUT : POLLIN };
        poll(&p, 1, NAP);
    }
    return true;
}

static void prepare_socket(int fd) {
    int yes = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

static err tcp_listen(int port, int *out, int *got) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0), no = 0, yes = 1;
    bool v6 = fd >= 0;
    if (!v6) fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_storage a = { 0 };
    if (v6)
        *(struct sockaddr_in6 *)&a =
            (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    else
        *(struct sockaddr_in *)&a =
            (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    socklen_t n = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (fd >= 0) {
        if (v6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    if (fd < 0 || bind(fd, (void *)&a, n) != 0 || listen(fd, COMM_MAX_RANKS) != 0) {
        err e = err_hint(ERR("cannot listen on port %d: %s", port, strerror(errno)),
                         "choose another MASTER_PORT on all ranks");
        if (fd >= 0) close(fd);
        return e;
    }
    getsockname(fd, (void *)&a, &n);
    *got =
        ntohs(v6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
    *out = fd;
    return OK;
}

/* @return a connection, or -1 with errno; at most a second passes. */
static int connect_to(const struct sockaddr *a, socklen_t n) {
    int fd = socket(a->sa_family, SOCK_STREAM, 0), failed = 0;
    socklen_t size = sizeof failed;
    if (fd < 0) return -1;
    prepare_socket(fd);
    if (connect(fd, a, n) == 0) return fd;
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    if (errno == EINPROGRESS && poll(&p, 1, 1000) > 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) == 0 && !failed)
        return fd;
    int code = failed ? failed : errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
    errno = code;
    return -1;
}

/* ---- names ---------------------------------------------------------------------------------------- */
/* getaddrinfo blocks for as long as a name server does not answer, so a thread calls it. The last of
 * its two users frees this. */
typedef struct resolution {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *host, service[16];
    int users, code;
    bool done;
    struct addrinfo *list;
} resolution;

static void leave_resolution(resolution *r) {
    pthread_mutex_lock(&r->lock);
    int left = --r->users;
    pthread_mutex_unlock(&r->lock);
    if (left) return;
    if (r->list) freeaddrinfo(r->list);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r->host);
    free(r);
}

static void *resolve_name(void *arg) {
    resolution *r = arg;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list = NULL;
    int code = getaddrinfo(r->host, r->service, &hints, &list);
    pthread_mutex_lock(&r->lock);
    r->code = code;
    r->list = code ? NULL : list;
    r->done = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    leave_resolution(r);
    return NULL;
}

/* @return owned by both: leave_resolution; NULL: its thread could not be started. */
static resolution *begin_resolution(const char *host, int port) {
    resolution *r = mem_alloc(sizeof *r);
    pthread_t thread;
    sigset_t before;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->host = strdup(host);
    r->users = 2;
    snprintf(r->service, sizeof r->service, "%d", port);
    thread_block_signals(&before);
    int failed = pthread_create(&thread, NULL, resolve_name, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        r->users = 1;
        leave_resolution(r);
        return NULL;
    }
    pthread_detach(thread);
    return r;
}

/* Tries each address of rank 0's host once. @param w of the resolution: its detail is set.
 * @param resolved whether the name has an address. @param out -1: none is reached. */
static void try_addresses(const meeting_state *m, wait_state *w, bool *resolved, int *out) {
    resolution *r = begin_resolution(m->host, m->port);
    *resolved = false;
    *out = -1;
    if (!r) {
        snprintf(w->detail, sizeof w->detail, "the system refuses another thread");
        return;
    }
    pthread_mutex_lock(&r->lock);
    while (!r->done && wait_for_change(w, &r->changed, &r->lock)) {
    }
    const char *why = !r->done ? "the name server does not answer" : gai_strerror(r->code);
    *resolved = r->done && !r->code;
    pthread_mutex_unlock(&r->lock);
    if (!*resolved) snprintf(w->detail, sizeof w->detail, "%s", why);
    for (struct addrinfo *a = *resolved ? r->list : NULL; a && *out < 0; a = a->ai_next) {
        *out = connect_to(a->ai_addr, a->ai_addrlen);
        if (*out < 0) snprintf(w->detail, sizeof w->detail, "%s", strerror(errno));
    }
    leave_resolution(r);
}

static err not_resolved(const meeting_state *m, const wait_state *w) {
    if (wait_is_interrupted(w)) return wait_failed(w);
    return err_hint(
        ERR("\"%s\", the host of rank 0, does not resolve: %s", m->host, w->detail),
        "MASTER_ADDR must be a name that this host knows, or an address, of rank 0's host");
}

/* Connects to rank 0, which may not be there yet. */
static err connect_to_first(meeting_state *m, int *out) {
    wait_state names, *w = &m->w;
    bool resolved = false;
    wait_begin(&names, MIN((double)RESOLVE_S, w->deadline - w->began), "the name \"%s\" to resolve",
               m->host);
    snprintf(w->name, sizeof w->name, "rank 0 at %s port %d", m->host, m->port);
    wait_set_back_off(w, 0.1, 2);
    do {
        try_addresses(m, &names, &resolved, out);
        if (*out >= 0) return OK;
        if (resolved)
            names.deadline = time_now() + RESOLVE_S; /* it may stop to, and begin again */
        else if (!wait_nap(&names))
            return not_resolved(m, &names);
        memcpy(w->detail, names.detail, sizeof w->detail);
    } while (wait_nap(w));
    if (wait_is_interrupted(w)) return wait_failed(w);
    return err_hint(ERR("rank 0 cannot be reached at %s port %d: %s, for %.0f s", m->host, m->port,
                        w->detail, time_now() - w->began),
                    "is it running? MASTER_ADDR must be a name of its host that others know, and "
                    "MASTER_PORT open; comm.timeout_seconds sets how long to try");
}

/* ---- those that come --------------------------------------------------------------------------------- */
/* Appends "rank 1" or "ranks 1, 3 and 5 more": the ranks from `from` on without a connection. */
static void list_absent(const meeting_state *m, int from, char *to, size_t n) {
    enum { MOST = 8 };
    str s = { 0 };
    int missing = 0, named = 0;
    for (int r = from; r < m->ranks; r++) missing += m->fds[r] < 0;
    str_add(&s, missing == 1 ? "rank" : "ranks");
    for (int r = from; r < m->ranks && named < MOST; r++)
        if (m->fds[r] < 0) str_add(&s, "%s %d", named++ ? "," : "", r);
    if (missing > named) str_add(&s, " and %d more", missing - named);
    snprintf(to, n, "%s", s.text);
    str_free(&s);
}

static bool has_ended(int fd) {
    char byte;
    return fd >= 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Waits for a connection that begins with a hello; others are closed. */
static err accept_hello(meeting_state *m, int from, int *fd, hello *h) {
    wait_state *w = &m->w;
    char missing[128];
    list_absent(m, from, missing, sizeof missing);
    snprintf(w->name, sizeof w->name, "%s to connect to rank %d, port %d", missing, m->rank,
             m->own_port);
    for (;;) {
        struct pollfd p = { .fd = m->listener, .events = POLLIN };
        if (wait_is_over(w)) break;
        if (m->rank && has_ended(m->fds[0]))
            return err_hint(ERR("rank 0 has ended while the job starts"),
                            "its own output has the cause");
        if (poll(&p, 1, NAP) <= 0) continue;
        *fd = accept(m->listener, NULL, NULL);
        if (*fd < 0) continue;
        prepare_socket(*fd);
        wait_state soon = *w;
        soon.deadline = MIN(w->deadline, time_now() + HELLO_S);
        if (transfer_all(*fd, h, sizeof *h, false, &soon) && h->magic == MAGIC) return OK;
        snprintf(w->detail, sizeof w->detail, "something that is not a rank has connected");
        close(*fd);
    }
    if (wait_is_interrupted(w)) return wait_failed(w);
    return err_hint(
        ERR("rank %d has waited %.0f s for %s%s%s", m->rank, time_now() - w->began, missing,
            *w->detail ? "; " : "", w->detail),
        "start one process with each RANK from 0 to %d, and the same MASTER_ADDR and MASTER_PORT; "
        "comm.timeout_seconds sets how long to wait",
        m->ranks - 1);
}

static void send_answer(meeting_state *m, int fd, answer_status status, uint32_t detail) {
    answer a = { MAGIC, status, detail };
    wait_state soon = m->w;
    soon.deadline = MIN(soon.deadline, time_now() + HELLO_S);
    transfer_all(fd, &a, sizeof a, true, &soon); /* one that is gone has an error of its own */
}

static err same_rank_error(uint32_t rank) {
    return err_hint(
        ERR("two processes are rank %u: RANK is the same in both", rank),
        "give each process another RANK, from 0 to WORLD_SIZE - 1; a process of an earlier job "
        "may still run");
}

/* Accepts a process that has connected to rank 0. @return an error that is sent to all of them. */
static err admit_rank(meeting_state *m, int fd, const hello *h) {
    socklen_t n = sizeof m->all->at;
    if (h->ranks != (uint32_t)m->ranks || h->rank >= h->ranks) {
        send_answer(m, fd, OTHER_RANKS, (uint32_t)m->ranks);
        close(fd);
        snprintf(m->w.detail, sizeof m->w.detail,
                 "a process with RANK=%u and WORLD_SIZE=%u was turned away", h->rank, h->ranks);
        log_warn("rank 0 expects %d ranks: %s", m->ranks, m->w.detail);
        return OK;
    }
    if (h->rank == 0 || m->fds[h->rank] >= 0) {
        send_answer(m, fd, SAME_RANK, h->rank);
        close(fd);
        for (int r = 1; r < m->ranks; r++)
            if (m->fds[r] >= 0) send_answer(m, m->fds[r], SAME_RANK, h->rank);
        return same_rank_error(h->rank);
    }
    m->fds[h->rank] = fd;
    getpeername(fd, (void *)&m->all[h->rank].at, &n);
    m->all[h->rank].at.sin6_port = htons((uint16_t)h->port); /* at the same offset in sockaddr_in */
    return OK;
}

static int count_connected(const meeting_state *m) {
    int n = 0;
    for (int r = 0; r < m->ranks; r++) n += m->fds[r] >= 0;
    return n;
}

static err meet_as_first(meeting_state *m) {
    while (count_connected(m) < m->ranks - 1) {
        hello h;
        int fd;
        TRY(accept_hello(m, 1, &fd, &h));
        TRY(admit_rank(m, fd, &h));
    }
    snprintf(m->w.name, sizeof m->w.name, "the ranks to take their addresses");
    for (int r = 1; r < m->ranks; r++) {
        send_answer(m, m->fds[r], WELCOME, 0);
        if (!transfer_all(m->fds[r], m->all, (size_t)m->ranks * sizeof *m->all, true, &m->w))
            return wait_is_over(&m->w) ? wait_failed(&m->w) : tcp_rank_lost(r);
    }
    return OK;
}

/* ---- those that go ------------------------------------------------------------------------------------- */
static bool is_loopback_rank(const rank_address *a) {
    if (a->at.sin6_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)&a->at)->sin_addr.s_addr) >> 24 == 127;
    const uint8_t *b = a->at.sin6_addr.s6_addr;
    return IN6_IS_ADDR_LOOPBACK(&a->at.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&a->at.sin6_addr) && b[12] == 127);
}

/* Ranks on rank 0's host may have connected from an address that others cannot reach. */
static void replace_loopback(rank_address *a, int first) {
    if (!is_loopback_rank(a)) return;
    in_port_t port = a->at.sin6_port;
    socklen_t n = sizeof a->at;
    getpeername(first, (void *)&a->at, &n);
    a->at.sin6_port = port;
}

/* Rank 0's reply to this rank. Addresses are sent once all ranks have connected to rank 0. */
static err read_welcome(meeting_state *m, int first) {
    answer a = { 0 };
    wait_state *w = &m->w;
    w->detail[0] = '\0';
    snprintf(w->name, sizeof w->name, "the other ranks to connect to rank 0 at %s port %d", m->host,
             m->port);
    bool got = transfer_all(first, &a, sizeof a, false, w) && a.magic == MAGIC;
    if (got && a.status == SAME_RANK) return same_rank_error(a.detail);
    if (got && a.status == OTHER_RANKS)
        return err_hint(ERR("rank 0 expects %u ranks; this process is rank %d of %d", a.detail,
                            m->rank, m->ranks),
                        "set the same WORLD_SIZE in all processes, and RANK below it");
    if (got && transfer_all(first, m->all, (size_t)m->ranks * sizeof *m->all, false, w)) return OK;
    if (wait_is_over(w)) return wait_failed(w);
    return err_hint(
        ERR("rank 0 at %s port %d has closed the connection of rank %d", m->host, m->port, m->rank),
        "its own output has the cause; is it the same program?");
}

static err connect_to_rank(meeting_state *m, int r, hello *me) {
    rank_address *a = &m->all[r];
    wait_state w;
    replace_loopback(a, m->fds[0]);
    socklen_t n = a->at.sin6_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof a->at;
    wait_begin(&w, MIN((double)REACH_S, MAX(0.0, m->w.deadline - time_now())), "rank %d", r);
    for (int fd; m->fds[r] < 0;) {
        fd = connect_to((void *)&a->at, n);
        if (fd >= 0 && transfer_all(fd, me, sizeof *me, true, &m->w)) {
            m->fds[r] = fd;
            continue;
        }
        snprintf(w.detail, sizeof w.detail, "%s", strerror(errno));
        if (fd >= 0) close(fd);
        if (wait_nap(&w)) continue;
        if (wait_is_interrupted(&w)) return wait_failed(&w);
        return err_hint(
            ERR("rank %d cannot reach rank %d: %s", m->rank, r, w.detail),
            "ranks connect to one another on any port: let no firewall be between their hosts");
    }
    return OK;
}

static err meet_others(meeting_state *m) {
    hello me = { MAGIC, (uint32_t)m->ranks, (uint32_t)m->rank, (uint32_t)m->own_port, 0 }, h;
    int first;
    TRY(connect_to_first(m, &first));
    m->fds[0] = first;
    if (!transfer_all(first, &me, sizeof me, true, &m->w)) return tcp_rank_lost(0);
    TRY(read_welcome(m, first));
    for (int r = 1; r < m->rank; r++) TRY(connect_to_rank(m, r, &me));
    while (count_connected(m) < m->ranks - 1) {
        int fd;
        TRY(accept_hello(m, m->rank + 1, &fd, &h));
        if (h.ranks != (uint32_t)m->ranks || h.rank >= h.ranks) {
            close(fd); /* of another job */
            continue;
        }
        if (h.rank <= (uint32_t)m->rank || m->fds[h.rank] >= 0) {
            close(fd);
            return same_rank_error(h.rank);
        }
        m->fds[h.rank] = fd;
    }
    return OK;
}

/* ---- the meeting ------------------------------------------------------------------------------------------ */
/* Rank 0's port is taken: by another rank 0, which says so, or by something else. @param e of the bind; freed. */
static err explain_taken_port(meeting_state *m, err e) {
    struct sockaddr_in here = { .sin_family = AF_INET,
                                .sin_port = htons((uint16_t)m->port),
                                .sin_addr = { htonl(INADDR_LOOPBACK) } };
    hello me = { MAGIC, (uint32_t)m->ranks, 0, 0, 0 };
    answer a = { 0 };
    wait_state soon = m->w;
    soon.deadline = MIN(soon.deadline, time_now() + HELLO_S);
    int fd = connect_to((void *)&here, sizeof here);
    bool same = fd >= 0 && transfer_all(fd, &me, sizeof me, true, &soon) &&
                transfer_all(fd, &a, sizeof a, false, &soon) && a.magic == MAGIC &&
                a.status == SAME_RANK;
    if (fd >= 0) close(fd);
    if (!same) return e;
    err_free(e);
    return same_rank_error(0);
}

/* An earlier job on rank 0's port may just be ending. */
static err listen_as(meeting_state *m) {
    int port = m->rank ? 0 : m->port;
    wait_state w;
    wait_begin(&w, MIN((double)BIND_S, m->w.deadline - m->w.began), "port %d to become free", port);
    err e = tcp_listen(port, &m->listener, &m->own_port);
    while (e && wait_nap(&w)) {
        err_free(e);
        e = tcp_listen(port, &m->listener, &m->own_port);
    }
    if (e && wait_is_interrupted(&w)) {
        err_free(e);
        return wait_failed(&w);
    }
    return e ? explain_taken_port(m, e) : OK;
}

err tcp_meet(int rank, int ranks, const char *host, int port, double timeout, int *fds) {
    meeting_state m = { .rank = rank, .ranks = ranks, .host = host, .port = port, .fds = fds };
    wait_begin(&m.w, timeout, "the ranks of the job");
    for (int r = 0; r < ranks; r++) fds[r] = -1;
    TRY(listen_as(&m));
    m.all = mem_alloc((size_t)ranks * sizeof *m.all);
    err e = rank ? meet_others(&m) : meet_as_first(&m);
    close(m.listener);
    free(m.all);
    return e;
}
