/* ingot data tokenize: text to tokens. */
#include "cli/data_common.h"
#include "cli/tokenizer_common.h"
#include "shards/data.h"
#include "io/io.h"

#include <string.h>

typedef struct tokenize_args {
    data_common common;
    const char *tokenizer, *pattern, *bos, *eos, *prompt_field;
    double held_out;
} tokenize_args;

/* Bytes that a thread holds for each byte of the longest document at worst: ids as they are made, the
 * same as they are stored, and both once more while they grow. */
enum { BYTES_PER_BYTE = 16, TOKENIZER_BYTES_AT_MOST = 64 << 20 };

static void print_tokenize_json(const char *out, const tokenize_report *r) {
    json_t *o = json_pack(
        "{s:I, s:o, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I}",
        "prompts", (json_int_t)r->prompts, "out", io_json_string(out, strlen(out)), "documents",
        (json_int_t)r->documents, "tokens", (json_int_t)r->tokens, "held_out_documents",
        (json_int_t)r->held_out_documents, "held_out_tokens", (json_int_t)r->held_out_tokens,
        "shards", r->shards, "resumed", r->resumed, "bytes", (json_int_t)r->bytes, "repaired",
        (json_int_t)r->repaired, "invalid", (json_int_t)r->invalid, "unreadable",
        (json_int_t)r->unreadable, "empty", (json_int_t)r->empty, "excluded",
        (json_int_t)r->excluded, "seconds", r->seconds, "peak_memory_bytes",
        (json_int_t)r->peak_memory);
    BUG_IF(!o);
    io_json_print(stdout, o, JSON_INDENT(2));
}

static void print_tokenize_report(const char *out, const tokenize_report *r) {
    char a[32], b[32];
    const struct {
        const char *what;
        int64_t n;
    } skipped[] = { { "not UTF-8", r->invalid },
                    { "unreadable", r->unreadable },
                    { "empty", r->empty },
                    { "excluded", r->excluded },
                    { "repaired and kept", r->repaired } };
    printf("%s\n", out);
    printf("  training    %12lld documents  %14lld tokens\n", (long long)r->documents,
           (long long)r->tokens);
    if (r->held_out_documents)
        printf("  validation  %12lld documents  %14lld tokens\n", (long long)r->held_out_documents,
               (long long)r->held_out_tokens);
    if (r->prompts)
        printf("  prompts     %12lld documents, whose prompts have no loss\n",
               (long long)r->prompts);
    for (size_t i = 0; i < COUNT_OF(skipped); i++)
        if (skipped[i].n)
            printf("  %-11s %12lld documents\n", skipped[i].what, (long long)skipped[i].n);
    printf("  %d shard%s", r->shards, r->shards == 1 ? "" : "s");
    if (r->resumed) printf(", %d of them there before", r->resumed);
    if (r->bytes)
        printf("; %s of text, %.2f bytes per token, %s/s", str_bytes(a, sizeof a, (double)r->bytes),
               (double)r->bytes / (double)MAX(r->tokens + r->held_out_tokens, 1),
               str_bytes(b, sizeof b, (double)r->bytes / MAX(r->seconds, 1e-9)));
    printf("; peak memory %s", str_bytes(a, sizeof a, (double)r->peak_memory));
    if (r->ranks > 1) printf(" on each of %d ranks", r->ranks);
    printf("\n");
}

/* Documents are chosen by a hash of their text: of few, or of unequal ones, the part may be far from what was asked
 * for. */
static void warn_of_held_out(double wanted, const tokenize_report *r) {
    double all = (double)(r->tokens + r->held_out_tokens), got = (double)r->held_out_tokens / all;
    if (wanted <= 0 || all <= 0 || (got <= 2 * wanted && got >= wanted / 2)) return;
    log_warn("--held-out: %lld of %lld documents are held out, %.3g %% of the tokens instead of "
             "%.3g %%: documents are chosen whole, by a hash of their text. Split the text into "
             "more documents, or give other text with data.validation",
             (long long)r->held_out_documents, (long long)(r->documents + r->held_out_documents),
             100 * got, 100 * wanted);
}

static err find_token(const tokenizer *t, const char *option, const char *text, int32_t *id) {
    *id = tokenizer_find(t, text, strlen(text));
    return *id >= 0 ? OK : ERR_USAGE("--%s: the tokenizer has no token \"%.60s\"", option, text);
}

/* Chooses the tokens that begin and end documents; the tokenizer that is left with the shards describes the beginning. */
static err choose_affixes(const tokenize_args *a, tokenizer *t, int32_t *eos) {
    token_affixes around = *tokenizer_affixes(t);
    *eos = DOCUMENT_END_OWN;
    if (a->eos && strcmp(a->eos, "none") == 0)
        *eos = DOCUMENT_END_NONE;
    else if (a->eos && strcmp(a->eos, "auto") != 0)
        TRY(find_token(t, "eos", a->eos, eos));
    if (!a->bos || strcmp(a->bos, "auto") == 0) return OK;
    around.n_prefix = strcmp(a->bos, "none") != 0;
    if (around.n_prefix) TRY(find_token(t, "bos", a->bos, &around.prefix[0]));
    tokenizer_set_affixes(t, &around);
    return OK;
}

static err write_tokenize_card(const tokenize_args *a, const tokenizer *t, const text_inputs *in,
                               const tokenize_report *r) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(t));
    json_t *sections = json_pack(
        "{s:{ss ss sI} s:{sI sI} s:{sI sI}}", "tokenizer", "kind", tokenizer_kind(t), "hash", hash,
        "vocabulary", (json_int_t)tokenizer_vocab(t), "training", "documents",
        (json_int_t)r->documents, "tokens", (json_int_t)r->tokens, "validation", "documents",
        (json_int_t)r->held_out_documents, "tokens", (json_int_t)r->held_out_tokens);
    BUG_IF(!sections);
    err e = text_card_write(a->common.out, "tokenize", a->common.given, in, sections);
    json_decref(sections);
    return e;
}

static err tokenize_inputs(const tokenize_args *a, char **paths, int n) {
    tokenizer *t = NULL;
    text_inputs *in = NULL;
    tokenize_report r;
    int threads;
    err e = OK;
    TRY(data_common_fit(&a->common, TOKENIZER_BYTES_AT_MOST, BYTES_PER_BYTE, &threads));
    TRY(tokenizer_open(a->tokenizer ? a->tokenizer : "bytes", a->pattern, &t));
    tokenize_options o = { .tokenizer = t,
                           .held_out = a->held_out,
                           .threads = threads,
                           .fresh = a->common.fresh,
                           .quiet = a->common.quiet,
                           .prompt_field = a->prompt_field,
                           .comm = a->common.comm };
    TRY_CLEAN(choose_affixes(a, t, &o.eos));
    TRY_CLEAN(data_common_open(&a->common, paths, n, &in));
    TRY_CLEAN(data_tokenize_text(in, a->common.out, &o, &r));
    if (data_common_prints(&a->common) && !str_ends(a->common.out, ".tok"))
        TRY_CLEAN(write_tokenize_card(a, t, in, &r));
    if (data_common_prints(&a->common)) warn_of_held_out(a->held_out, &r);
    if (data_common_prints(&a->common) && a->prompt_field && !r.prompts && r.resumed < r.shards)
        log_warn(
            "--prompt-field: no document has a member \"%.60s\" that is text: nothing is masked",
            a->prompt_field);
    if (data_common_prints(&a->common))
        (a->common.json ? print_tokenize_json : print_tokenize_report)(a->common.out, &r);
cleanup:
    text_inputs_close(in);
    tokenizer_free(t);
    return e;
}

static err run_tokenize_rank(const cli_subcommand *self, int argc, char **argv,
                             const data_job *job) {
    tokenize_args a = { .common = { .comm = job->comm, .given = job->given } };
    int n;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    if (!a.common.out)
        return err_hint(ERR_USAGE("--out: needs a folder for the shards, or a file ending in .tok"),
                        "ingot %s %s", self->spec.command, self->spec.usage);
    TRY(data_common_check_held_out(a.held_out));
    static const char *const files[] = { ".bin", ".idx", ".npy", ".jsonl", ".txt", ".gz", ".zst" };
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (str_ends(a.common.out, files[i]))
            return err_hint(
                ERR_USAGE("--out: %s files are not written here", files[i]),
                "give a folder for the shards, or a file ending in .tok; `ingot data export` then "
                "writes files for Megatron, llm.c, nanoGPT and Hugging Face datasets");
    if (a.held_out > 0 && str_ends(a.common.out, ".tok"))
        return err_hint(ERR_USAGE("--held-out: needs a folder; %s is one file", a.common.out),
                        "give --out a folder");
    return tokenize_inputs(&a, argv, n);
}

#define AT(member) offsetof(tokenize_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "out", ARG_TEXT, DATA_AT(out), "PATH", "a folder for the shards, which a rerun resumes, or a single file ending in .tok; also below a URL, s3://BUCKET/KEY", 'o' },
    TOKENIZER_ARG(tokenize_args),
    PATTERN_ARG(tokenize_args),
    { "bos", ARG_TEXT, AT(bos), "auto|none|TOKEN", "what begins documents (default auto: what the tokenizer's post-processor puts there)" },
    { "eos", ARG_TEXT, AT(eos), "auto|none|TOKEN", "what ends documents (default auto: the tokenizer's suffix and end-of-document token)" },
    { "held-out", ARG_FRACTION, AT(held_out), "F", "fraction of documents to hold out for validation, chosen by a hash of their text (default 0)" },
    { "prompt-field", ARG_TEXT, AT(prompt_field), "NAME", "JSON member or column that holds a prompt, which is put before the text; its tokens have no loss in training (default: documents have none)" },
    { "fresh", ARG_FLAG, DATA_AT(fresh), "", "discard what is in the folder and start over" },
    DATA_PART_ARG,
    DATA_READ_ARGS,
};
/* clang-format on */

const cli_subcommand data_tokenize = {
    .summary = "turn documents into shards of tokens",
    .run_rank = run_tokenize_rank,
    .spec = { "data tokenize", "INPUT... -t TOKENIZER --out FOLDER [options]", CLI_ARGS(args), 1,
              true },
    .help =
        "Inputs are files, folders, globs or - : text, JSON lines, WARC, WET, plain or\n"
        "compressed. Without -t, tokens are bytes.\n"
        "\n"
        "`ingot launch -n N -- data tokenize ...`, mpirun and srun share the input among N ranks, which\n"
        "write the same shards; folders must be on a file system that all of them see, or below a URL (s3://).\n"
        "\n"
        "Examples\n"
        "  ingot data tokenize clean/ -t tokenizer.json --held-out 0.005 --out tokens\n"
        "  ingot train configs/tiny.yaml --data.train=tokens\n"
        "  ingot data tokenize book.txt --out book.tok\n"
        "  ingot data tokenize chats.jsonl -t tokenizer.json --prompt-field prompt --text-field completion --out sft\n",
};
