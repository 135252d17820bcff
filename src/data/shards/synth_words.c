/* The synthetic corpus: the cast and the sentences stories share. Data only. */
#include "shards/synth_internal.h"

/* clang-format off */
static const char *const BOYS[] = {
    "Tom; boy; he; him; his",   "Ben; boy; he; him; his",   "Sam; boy; he; him; his",
    "Max; boy; he; him; his",   "Leo; boy; he; him; his",   "Jack; boy; he; him; his",
    "Finn; boy; he; him; his",  "Tim; boy; he; him; his",   "Noah; boy; he; him; his",
    "Hugo; boy; he; him; his",  NULL };
static const char *const GIRLS[] = {
    "Mia; girl; she; her; her",  "Lily; girl; she; her; her", "Anna; girl; she; her; her",
    "Rosa; girl; she; her; her", "Nora; girl; she; her; her", "Ella; girl; she; her; her",
    "Ruby; girl; she; her; her", "Sara; girl; she; her; her", "Lucy; girl; she; her; her",
    "Tess; girl; she; her; her", NULL };
static const char *const ANIMALS_HE[] = {
    "Bruno; bear; he; him; his",    "Rusty; fox; he; him; his",    "Milo; mouse; he; him; his",
    "Otto; otter; he; him; his",    "Oscar; rabbit; he; him; his", "Benny; badger; he; him; his",
    NULL };
static const char *const ANIMALS_SHE[] = {
    "Daisy; duck; she; her; her",  "Hazel; squirrel; she; her; her", "Luna; cat; she; her; her",
    "Dot; mouse; she; her; her",   "Willow; deer; she; her; her",    "Penny; hedgehog; she; her; her",
    NULL };
static const char *const ADULTS[] = {
    "Grandma Rose; woman; she; her; her", "Grandpa Joe; man; he; him; his",
    "Mrs. Green; woman; she; her; her",   "Mr. Hill; man; he; him; his",
    "Aunt May; woman; she; her; her",     "Uncle Bob; man; he; him; his", NULL };
static const char *const ELDERS[] = {
    "the old owl; owl; she; her; her",    "the wise turtle; turtle; he; him; his",
    "the gray goose; goose; she; her; her", "the old frog; frog; he; him; his", NULL };

static const char *const CHILD_HOMES[] = {
    "in a small house by the sea; the beach",      "on a farm near the forest; the old barn",
    "in a little town by the river; the stone bridge",
    "on a quiet street with tall trees; the park", "at the edge of a green valley; the meadow",
    "in a white house on a hill; the garden gate", NULL };
static const char *const ANIMAL_HOMES[] = {
    "in a warm den under an oak tree; the old log", "at the edge of a quiet pond; the tall reeds",
    "in a hollow tree in the forest; the flat rock", "in a little hole under the hedge; the berry bush",
    "beside a clear stream; the wooden bridge",     NULL };

const char *const *const SYNTH_HE[2] = { BOYS, ANIMALS_HE };
const char *const *const SYNTH_SHE[2] = { GIRLS, ANIMALS_SHE };
const char *const *const SYNTH_OLD[2] = { ADULTS, ELDERS };
const char *const *const SYNTH_HOMES[2] = { CHILD_HOMES, ANIMAL_HOMES };

const char *const SYNTH_TRAITS[] = {
    "kind; liked to help everyone {A.he} met",
    "curious; asked questions from morning to night",
    "shy; did not talk much, but {A.he} saw everything",
    "cheerful; sang songs all day long",
    "careful; always looked twice before {A.he} did a thing",
    "clever; loved to find out how things worked",
    "quiet; liked to sit still and listen to the wind",
    "busy; was always making something new",
    "playful; could make a game out of anything",
    "gentle; spoke softly to every flower and every bird", NULL };
const char *const SYNTH_KEEPSAKES[] = {
    "[red|green|blue|yellow|white|brown] [hat|scarf|coat|cap]", NULL };

static const char *const OPENING[] = {
    "once upon a time, there was a {trait} {A.kind} named {A}. {A.he} lived {home}. {A} {habit}.",
    "once upon a time, a {A.kind} named {A} lived {home}. {A.he} was very {trait}. {A} {habit}.",
    "there once was a little {A.kind} named {A}, who lived {home}. {A} was {trait} and {habit}.",
    "{A} was a {trait} {A.kind} who lived {home}. {A.he} always wore a {keep}, and {A.he} {habit}.",
    "in a place far away, there was a {A.kind} named {A}. {A.he} lived {home} and wore a {keep} [every day|in all weather]. Everyone knew that {A} was {trait}.",
    "long ago, a young {A.kind} named {A} lived {home}. {A} was {trait}, and {A.he} {habit}.", NULL };
static const char *const DAY[] = {
    "one [sunny|bright|warm|quiet|clear] [morning|afternoon|day]", "one day",
    "one morning after breakfast", "early one morning", "on a day like any other",
    "late one afternoon", NULL };
static const char *const LATER[] = {
    "just then", "after a while", "a little later", "soon", "before long", NULL };
static const char *const OUT[] = {
    "{A} put on {A.his} {keep} and went out.", "{A} took {A.his} {keep} and walked to {place}.",
    "{A} went for a walk near {place}.", "{A} got up early and ran to {place}.", NULL };
static const char *const SAD[] = {
    "{A} felt [very|so] sad.", "{A} sat down and almost cried.", "{A} did not know what to do.",
    "a tear ran down {A}'s face.", "{A}'s heart felt heavy.",
    "`[oh no|oh dear],` said {A}. `What can I do now?`", NULL };
static const char *const GLAD[] = {
    "{A} jumped with joy.", "{A} smiled a big smile.", "{A} laughed out loud.",
    "{A} had never felt so happy.", "`hooray!` cried {A}.", "{A} was so glad that {A.he} danced around.",
    NULL };
static const char *const ARRIVES[] = {
    "{:later}, {B} came along.", "{:later}, {A.his} friend {B} came down the path.",
    "{:later}, a {B.kind} named {B} came by.", "{:later}, {B} came to see what was wrong.", NULL };
static const char *const ASKS[] = {
    "`what is wrong?` asked {B}.", "`why do you look so sad?` {B.he} asked.",
    "`can I help you?` asked {B}.", "`what happened?` {B} wanted to know.", NULL };
static const char *const IDEA[] = {
    "`I have an idea,` said {B}.", "`I know what to do,` said {B}.",
    "{B} thought for a moment. `I think I can help,` {B.he} said.",
    "`do not worry,` said {B}. `We will find a way.`", NULL };
static const char *const THANKS[] = {
    "`thank you, {B},` said {A}. `[you are a good friend|I could not do it without you|you are very kind].`",
    "{A} thanked {B} again and again.", "{A} gave {B} a big hug and said thank you.",
    "`we did it!` cried {A}. `Thank you, {B}.`", NULL };
static const char *const LEARNED[] = {
    "from that day on, {A} knew that", "{A} had learned that", "{A} never forgot that",
    "now {A} understood that", "{A} thought about it for a long time. Then {A.he} saw that", NULL };
static const char *const CLOSE[] = {
    "that night, {A} [slept well|went to bed with a smile|had sweet dreams].",
    "and from then on, {A} and {B} were the best of friends.",
    "the two friends walked home together as the sun went down.",
    "{A} and {B} [laughed all the way home|shared an apple and watched the sun go down|promised to meet again the next day].",
    "{A} hung up {A.his} {keep} and told everyone at home about [it|the day].",
    "and they all lived happily.", NULL };

const synth_list SYNTH_LISTS[] = {
    { "opening", OPENING }, { "day", DAY },     { "later", LATER },     { "out", OUT },
    { "sad", SAD },         { "glad", GLAD },   { "arrives", ARRIVES }, { "asks", ASKS },
    { "idea", IDEA },       { "thanks", THANKS }, { "learned", LEARNED }, { "close", CLOSE },
    { NULL, NULL } };
/* clang-format on */
