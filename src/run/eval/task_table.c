/* The tasks that are known by name: how a line of their files becomes a question. A row is all that there is of a task. Texts are those
 * that EleutherAI's lm-evaluation-harness shows to a model (4.x); the last three rows are the types of DCLM's CORE, and
 * core_table lists its tasks.
 *
 *     context, each, target   templates (template.h) of a line's members
 *     choices, answer         expressions: a list, and the index or letter of the right one
 *
 * A file is recognized by the members of its first line, in the order of the rows; "NAME=FILE" chooses a row. */
#include "eval/tasks_internal.h"

#define HELLASWAG_CLEAN(text)                                                                      \
    "((" text ").strip().replace(' [title]', '. ') | without_brackets).replace('  ', ' ')"
#define LETTERS     "'ABCDEFGHIJKLMNOPQRSTUVWXYZ'"
#define RACE_ANSWER "p.options['ABCD'.index(p.answer)]"
#define HUB         "https://huggingface.co/datasets/"
#define CHOOSE(context_, choices_, answer_)                                                        \
    TASK_CHOICES, .context = context_, .choices = choices_, .answer = answer_
#define WRITE(context_, choices_, target_)                                                         \
    TASK_GENERATE, .context = context_, .choices = choices_, .target = target_, .tokens = 256

const task_row task_table[] = {
    { "hellaswag",
      HUB "Rowan/hellaswag (validation)",
      { "activity_label", "ctx_a", "ctx_b", "endings" },
      CHOOSE(
          "{% set t = activity_label ~ ': ' ~ ctx_a ~ ' ' ~ ctx_b.capitalize() %}{{ " HELLASWAG_CLEAN(
              "t") " }}",
          "endings", "label"),
      .each = "{{ " HELLASWAG_CLEAN("choice") " }}" },
    { "openbookqa",
      HUB "allenai/openbookqa (main, test)",
      { "question_stem", "choices", "answerKey", "fact1|id" },
      CHOOSE("{{ question_stem }}", "choices.text", "choices.label.index(answerKey.strip())"),
      .by_name = true },
    { "commonsense_qa",
      HUB "tau/commonsense_qa (validation)",
      { "question_concept", "choices", "answerKey" },
      CHOOSE("Question: {{ question.strip() }}\n{% for c in choices.text %}{{ " LETTERS
             "[loop.index0] }}. {{ c }}\n{% endfor %}Answer:",
             "choices.label", "choices.label.index(answerKey)") },
    { "arc",
      HUB "allenai/ai2_arc (ARC-Easy, ARC-Challenge; test)",
      { "question", "answerKey" },
      CHOOSE("Question: {{ question }}\nAnswer:", "choices.text",
             "choices.label.index(answerKey)") },
    { "piqa",
      HUB "ybisk/piqa (validation)",
      { "goal", "sol1", "sol2" },
      CHOOSE("Question: {{ goal }}\nAnswer:", "[sol1, sol2]", "label") },
    { "mmlu",
      HUB "cais/mmlu (all, test; dev for --shots-from)",
      { "question", "choices", "answer", "subject" },
      CHOOSE("{{ question.strip() }}\n{% for c in choices %}{{ " LETTERS
             "[loop.index0] }}. {{ c }}\n{% endfor %}Answer:",
             LETTERS "[:choices | length] | list", "answer"),
      .preamble =
          "The following are multiple choice questions (with answers) about {{ subject.replace('_', ' ') }}.{{ '\\n\\n' }}",
      .group = "subject" },
    { "boolq",
      HUB "aps/super_glue (boolq, validation), or BoolQ's dev.jsonl",
      { "passage", "question" },
      CHOOSE("{{ passage }}\nQuestion: {{ question }}?\nAnswer:", "['no', 'yes']",
             "label if label is defined else answer") },
    { "sciq",
      HUB "allenai/sciq (test)",
      { "support", "distractor1", "correct_answer" },
      CHOOSE("{{ support.lstrip() }}\nQuestion: {{ question }}\nAnswer:",
             "[distractor1, distractor2, distractor3, correct_answer]", "3") },
    { "copa",
      HUB "aps/super_glue (copa, validation)",
      { "premise", "choice1", "choice2" },
      CHOOSE("{{ premise.strip()[:-1] }} {{ 'because' if question == 'cause' else 'therefore' }}",
             "[choice1, choice2]", "label"),
      .each = " {{ choice[0].lower() }}{{ choice[1:] }}" },
    { "race",
      HUB "EleutherAI/race (high, test)",
      { "article", "problems" },
      CHOOSE(
          "Article: {{ article }}\n\n{% for p in problems[:-1] %}{% if p.question[-6:] == '  _  .' %}"
          "{{ p.question[:-5] }}{{ " RACE_ANSWER
          " }}{{ '\\n' }}{% else %}Question: {{ p.question }}{{ '\\n' }}Answer: {{ " RACE_ANSWER
          " }}{{ '\\n' }}{% endif %}{% endfor %}{{ problems[-1].question }}",
          "problems[-1].options", "problems[-1].answer") },
    { "winogrande",
      HUB "allenai/winogrande (winogrande_xl, validation)",
      { "sentence", "option1", "option2" },
      TASK_SCHEMA,
      .choices = "[option1, option2]",
      .each = "{{ sentence.split('_', 1)[0] }}{{ choice }}",
      .target = "{{ sentence.split('_', 1)[1].strip() }}",
      .answer = "answer | int - 1" },
    { "lambada",
      HUB "EleutherAI/lambada_openai (default, test)",
      { "text" },
      TASK_GREEDY,
      .context = "{{ text.split(' ')[:-1] | join(' ') }}",
      .target = "{{ ' ' ~ text.split(' ')[-1] }}",
      .delimiter = "",
      .by_name = true },
    { "squad",
      HUB "rajpurkar/squad (validation)",
      { "title", "context", "question", "answers" },
      WRITE(
          "Title: {{ title }}\n\nBackground: {{ context }}\n\nQuestion: {{ question }}\n\nAnswer:",
          "answers.text", "{{ answers.text[0] }}"),
      .stop = { "\n" },
      .match = MATCH_SQUAD },
    { "triviaqa",
      HUB "mandarjoshi/trivia_qa (rc.nocontext, validation)",
      { "question", "answer", "question_source|question_id" },
      WRITE("Question: {{ question }}?\nAnswer:", "answer.aliases", "{{ answer.aliases[0] }}"),
      .stop = { "\n", ".", "," },
      .match = MATCH_WORDS },
    { "gsm8k",
      HUB "openai/gsm8k (main, test; train for --shots-from)",
      { "question", "answer" },
      WRITE("Question: {{ question }}\nAnswer:", "[answer]", "{{ answer }}"),
      .stop = { "Question:", "</s>", "<|im_end|>" },
      .match = MATCH_NUMBER },
    { "core_choices",
      "DCLM's evaluation data",
      { "query", "choices", "gold" },
      CHOOSE("{{ query }}", "choices", "gold"),
      .by_tokens = true },
    { "core_schema",
      "DCLM's evaluation data",
      { "context_options", "continuation", "gold" },
      TASK_SCHEMA,
      .choices = "context_options",
      .each = "{{ choice }}",
      .target = "{{ continuation }}",
      .answer = "gold",
      .by_tokens = true },
    { "core_greedy",
      "DCLM's evaluation data",
      { "context", "continuation" },
      TASK_GREEDY,
      .context = "{{ context | trim }}",
      .target = "{{ continuation }}",
      .by_tokens = true },
    { "choices",
      "a file of your own",
      { "context", "choices", "answer" },
      CHOOSE("{{ context }}", "choices", "answer") },
};
const int task_table_rows = (int)COUNT_OF(task_table);

#define COLON "\nAnswer: "
/* In the order of its publication; baselines are the shares of right answers by chance, in percent, of the evaluation bundle's
 * eval_meta_data.csv. */
const core_task core_table[CORE_TASKS] = {
    { "hellaswag_zeroshot", "language_understanding/hellaswag.jsonl", 0, " ", 25 },
    { "jeopardy", "world_knowledge/jeopardy_all.jsonl", 10, COLON, 0 },
    { "bigbench_qa_wikidata", "world_knowledge/bigbench_qa_wikidata.jsonl", 10, " ", 0 },
    { "arc_easy", "world_knowledge/arc_easy.jsonl", 10, COLON, 25 },
    { "arc_challenge", "world_knowledge/arc_challenge.jsonl", 10, COLON, 25 },
    { "copa", "commonsense_reasoning/copa.jsonl", 0, " ", 50 },
    { "commonsense_qa", "commonsense_reasoning/commonsense_qa.jsonl", 10, " ", 20 },
    { "piqa", "commonsense_reasoning/piqa.jsonl", 10, COLON, 50 },
    { "openbook_qa", "commonsense_reasoning/openbook_qa.jsonl", 0, " ", 25 },
    { "lambada_openai", "language_understanding/lambada_openai.jsonl", 0, " ", 0 },
    { "hellaswag", "language_understanding/hellaswag.jsonl", 10, " ", 25 },
    { "winograd", "language_understanding/winograd_wsc.jsonl", 0, " ", 50 },
    { "winogrande", "language_understanding/winogrande.jsonl", 0, " ", 50 },
    { "bigbench_dyck_languages", "symbolic_problem_solving/bigbench_dyck_languages.jsonl", 10, " ",
      0 },
    { "agi_eval_lsat_ar", "symbolic_problem_solving/agi_eval_lsat_ar.jsonl", 3, " ", 20 },
    { "bigbench_cs_algorithms", "symbolic_problem_solving/bigbench_cs_algorithms.jsonl", 10, " ",
      0 },
    { "bigbench_operators", "symbolic_problem_solving/bigbench_operators.jsonl", 10, " ", 0 },
    { "bigbench_repeat_copy_logic", "symbolic_problem_solving/bigbench_repeat_copy_logic.jsonl", 10,
      " ", 0 },
    { "squad", "reading_comprehension/squad.jsonl", 10, " ", 0 },
    { "coqa", "reading_comprehension/coqa.jsonl", 0, " ", 0 },
    { "boolq", "reading_comprehension/boolq.jsonl", 10, COLON, 62 },
    { "bigbench_language_identification",
      "language_understanding/bigbench_language_identification.jsonl", 10, " ", 9.1 },
};
