/* The synthetic corpus: the stories. Each frame is a chain of causes: somebody wants something, a
 * thing stands in the way, a first try fails for a reason, another works, and something is learned.
 * Data only; long lines are sentences. */
#include "shards/synth_internal.h"

/* clang-format off */

/* ---- a thing is out of reach ------------------------------------------------------------- */
static const char *const STUCK[] = {
    "kite; flying {A.his} kite; a strong wind took it and left it; in the top of an oak tree; the tree was too tall to climb; threw a stick at it, but the stick fell back down; a long ladder; climbed up step by step and pulled the kite free",
    "ball; playing with {A.his} ball; it flew too far and landed; on the roof of the barn; the roof was too high to reach; jumped as high as {A.he} could, but it was not enough; a tall ladder; climbed up to the roof and rolled the ball down",
    "toy boat; sailing {A.his} toy boat; the water carried it away and left it; in the middle of the pond; the water was too deep and cold; threw stones to make waves, but the boat only went farther away; a long branch; reached out with the branch and pulled the boat to the shore",
    "silver key; looking at {A.his} silver key; it slipped and ended up; at the bottom of the old well; the well was too dark and deep; let down a string, but the string was too short; a long rope with a hook; let the hook down into the well and pulled the key up",
    "straw basket; walking with {A.his} straw basket; the wind blew it away and dropped it; on the other side of the river; the river was too wide to jump over; tried to walk on the stones, but they were wet and slippery; a little row boat; rowed across and brought the basket back",
    "new boot; walking in {A.his} new boots; one boot came off and stayed; deep in the mud by the gate; the mud was too soft to stand on; pulled at it with a thin stick, but the stick broke; a wide board; laid the board over the mud and pulled the boot out",
    "favorite book; reading {A.his} favorite book; it slipped and ended up; behind the heavy shelf; the gap was too small to reach into; pushed the shelf with all {A.his} strength, but it did not move; a thin wooden spoon; slid the spoon into the gap and pushed the book out",
    "drum; playing {A.his} drum; it rolled down the hill and stopped; under a thick thorn bush; the thorns were too sharp to touch; kicked the bush, but the thorns held on to the drum; a pair of thick gloves; held the thorns apart and pulled the drum out", NULL };

/* ---- a thing is lost --------------------------------------------------------------------- */
static const char *const LOST[] = {
    "little bell; a gift from {C}; near the gate; under the bed; rang softly under a pile of leaves by the gate",
    "blue button; from {A.his} best coat; in the tall grass; in every pocket; shone like a drop of water in the tall grass",
    "wooden horse; a gift from {C}; behind the big stone; in all the boxes; lay on its side behind the big stone",
    "red ribbon; a prize from the summer fair; on the low branch; on the stairs; waved in the wind on the low branch of a tree",
    "round mirror; a gift from {C}; beside the stream; on the shelf; gave back the light of the sun beside the stream",
    "yellow spoon; the one {A.he} ate soup with each day; in the garden; in the kitchen; stood in the soft earth of the garden like a small flower",
    "tin whistle; a prize from the summer fair; on the path to the hill; under the table; lay in the dust on the path to the hill", NULL };

/* ---- something to make ------------------------------------------------------------------- */
static const char *const MAKE[] = {
    "apple cake; flour, eggs and apples; sugar; without sugar the cake would not be sweet; mixed everything and put it in the oven; the smell of warm apples filled the air; a big piece of cake",
    "pot of soup; carrots, beans and potatoes; salt; without salt the soup would taste like water; cut everything up and cooked it slowly in a pot; steam rose from the pot; a full bowl of soup",
    "kite; paper, glue and thin sticks; string; without string the kite would fly away; glued the paper to the sticks and tied on the string; the kite rose high above the trees; a turn with the kite",
    "small boat; wood, nails and a white sail; rope; without rope the sail would not stay up; put the pieces together and tied up the sail; the boat moved over the water like a swan; a ride in the boat",
    "bird house; boards, paint and a round door; nails; without nails the boards would not hold; put the boards together and painted them green; two small birds moved in the same day; a place to watch the birds",
    "warm blanket; wool, a needle and a lot of time; thread; without thread {A.he} could not sew; sewed all day until the last piece was in place; the blanket was soft and wide; a corner of the blanket",
    "swing; a board and a strong branch; rope; without rope the board could not hang; tied the board to the branch with a good knot; the swing went up and down like a bird; a turn on the swing", NULL };
static const char *const OWNER[] = {
    "some flowers from the garden", "a basket of berries", "a jar of honey", "three shiny stones",
    "a song", "help with the water buckets", NULL };

/* ---- something to learn ------------------------------------------------------------------ */
static const char *const LEARN[] = {
    "swim; at the pond; went under and came up with water in {A.his} nose; kick slowly and look ahead; swam all the way to the other side",
    "skate; on the frozen lake; slipped and sat down hard on the ice; bend your knees and look ahead; made a wide circle on the ice without one fall",
    "whistle; in the garden; blew and blew, but only air came out; make your mouth small and blow softly; whistled a whole song",
    "dance; in the barn; turned the wrong way and fell over; listen to the music first and count to four; danced until the music ended",
    "paint a tree; on the hill; made a picture that looked like a green cloud; look for a long time before you begin; made a picture of a tree with every branch in its place",
    "row a boat; at the lake; went around and around in a circle; pull with both sides at the same time; rowed straight across the lake",
    "bake bread; in the kitchen; made a bread as hard as a stone; wait until the dough has grown before you bake it; took a round and golden bread out of the oven",
    "play the drum; in the yard; hit the drum too fast and lost the beat; start slowly and count each beat; played a march, and everyone walked in step", NULL };

/* ---- something to be afraid of ------------------------------------------------------------- */
static const char *const FEAR[] = {
    "the dark; strange shadows moved on the wall; {A} had to bring a lamp to {C}; an old coat that moved in the wind; the dark is only the day without its light",
    "thunder; the sky began to growl; {A} had to close the door of the barn; a great noise that could not hurt anyone; a loud sound is not always a danger",
    "the old house; a low sound came from behind the door; {A} had to bring back a lost ball; a small kitten that wanted milk; many scary things are small when you see them up close",
    "the deep forest; something cracked in the bushes; {A} had to look for a lost lamb; the lost lamb itself, which was afraid too; others are often just as afraid as you are",
    "the high bridge; the boards made a creaking sound; {A} had to carry medicine to the other side; only old wood that had held for a hundred years; one small step after another takes you across",
    "the big dog next door; the dog barked behind the fence; {A} had to bring a letter to that house; a friendly dog that only wanted to play; it is good to look before you run away", NULL };

/* ---- two want the same ----------------------------------------------------------------------- */
static const char *const QUARREL[] = {
    "the red sled; sit in front; the sled turned over, and both fell into the snow; one of them sat in front on the way down, and the other on the next ride",
    "the last pear; have it all; the pear fell into the mud; they washed the pear and cut it into two equal halves",
    "the big swing; go first; the rope came loose, and the swing fell down; they tied the rope again and took turns, ten swings each",
    "the new paints; use the blue one; the blue paint spilled on the floor; they cleaned the floor and painted one big picture together",
    "the little tent; sleep on the soft side; the tent fell down on top of them; they put the tent up again and slept in the middle, side by side",
    "the drum; play it; the drum rolled away down the hill; one of them played the drum while the other one sang", NULL };

/* ---- somebody needs help --------------------------------------------------------------------- */
static const char *const HELP[] = {
    "a small bird; could not fly, because its wing was hurt; made a soft nest in a box and brought seeds and water every day; its wing was strong again; sang at the window every morning",
    "a thin kitten; was wet and cold, because it had no home; dried it with a towel and gave it warm milk; its fur was soft and dry; slept at the foot of the bed every night",
    "a lost lamb; could not find its mother, because the fog was thick; gave it milk and led it slowly from hill to hill; its mother answered its call; ran to the gate every time {A} came by",
    "a tired bee; could not fly, because it had found no flowers; put a drop of sugar water on a leaf beside it; it could move its wings again; came back with other bees, and the garden was full of flowers that year",
    "a young tree; was bent to the ground, because the storm had been so strong; tied it to a post and put good earth around it; it stood straight again; gave sweet apples in the autumn",
    "a little turtle; was very weak, because it had been on its back in the sun; turned it over and gave it water and shade; it could swim again; came to the shore to say hello whenever {A} was near", NULL };

/* ---- something is broken ------------------------------------------------------------------- */
static const char *const BROKEN[] = {
    "blue cup; ran through the kitchen and bumped into the table; glued the pieces together; the cup stood on the shelf again, with one thin line on its side",
    "window; kicked the ball too hard; cleaned up the glass and put in a new window; the sun came in as bright as before",
    "garden fence; climbed over the fence to save time; carried boards and held the nails; the fence was stronger than before",
    "flower pot; played with a rope near the door; put the flower into a new pot with fresh earth; the flower stood straight again",
    "old clock; opened the clock to see what was inside; put back every little wheel; the clock began to tick again",
    "brown chair; jumped up and down on a chair; cut a new leg from a strong piece of wood; the chair was as good as new", NULL };

/* ---- something to wait for ----------------------------------------------------------------- */
static const char *const GROW[] = {
    "sunflower; seed; pulled the earth away to see if it was growing; the flower was taller than {A}; kept the seeds for the hungry birds",
    "pumpkin; seed; shouted at the ground to make it hurry; the pumpkin was as big as a wheel; made soup for everyone",
    "apple tree; small tree; counted the leaves every hour; the branches were full of red apples; gave a basket of apples to each neighbor",
    "bean plant; bean; poured on so much water that the seed nearly drowned; the plant had climbed up to the window; cooked a pot of beans for supper",
    "rose bush; small bush; pulled at the buds to make them open; the bush was covered with roses; gave the first rose to {C}", NULL };

/* ---- a contest ----------------------------------------------------------------------------- */
static const char *const CONTEST[] = {
    "race around the lake; stopped to rest under a tree, because {B.he} was so sure to win; went on, one step after another; ran past the sleeping {B.kind}; keeping on is better than a fast start",
    "boat race on the river; took the short way, where the water was too low; stayed in the deep water and rowed at an even speed; passed {B}, who was stuck in the sand; the short way is not always the fast one",
    "contest for the tallest tower; built very fast, on soft ground; first made a wide base of flat stones; was still building when {B}'s tower fell down; good work begins at the bottom",
    "contest for the best soup; put in a little of everything, even mud from {B.his} boots; tasted the soup after each thing {A.he} put in; got the golden spoon; more is not always better",
    "race up the hill; ran so fast at the start that {B.he} soon had no breath left; walked at the start and saved {A.his} strength; came to the top while {B} sat on a stone and breathed hard; it is wise to save some strength for the end", NULL };

const synth_frame SYNTH_STORIES[] = {
    { CAST_ANY, { { "thing; doing; came; where; why; fail; tool; how", STUCK } }, {
        "{:opening}",
        "{:day}, {A} was {doing}. [It was the best one {A.he} had ever had.|{A.he} always took good care of it.|] [But then|Suddenly] {came} {where}. [{A} looked at it for a long time.|`Oh no, my {thing}!` cried {A}.|] {A.he} wanted to get it back, but {why}.",
        "first, {A} {fail}. {:sad}",
        "{:arrives} {:asks} `My {thing} is {where},` said {A}. `I cannot get it back.` {:idea} `Let us ask {C} for {tool}.`",
        "so they went to {C} and asked for {tool}. {C} was happy to help. {B} [held on tight|watched from below|stood close by], and {A} {how}. {:glad} {:thanks}",
        "{:learned} [it is wise to ask for help|two can do what one cannot|there is always another way to try|the right tool makes hard work easy]. {:close}" } },
    { CAST_ANY, { { "thing; worth; where; search; found", LOST } }, {
        "{:opening} [More than anything else, {A.he} loved|The thing {A.he} loved most was] {A.his} {thing}. It was {worth}.",
        "{:day}, the {thing} was gone. {A} looked {search}, but it was not there. {:sad}",
        "`think back,` said {C}. `Where did you go yesterday?` {A} thought and thought. `I was {where},` {A.he} said at last. `Then look there first,` said {C}.",
        "{A} put on {A.his} {keep} and went out to look. {B} came too, because four eyes see more than two. They [walked slowly and looked at the ground|looked to the left and to the right]. Suddenly {B} [stopped|called out]. `There!` {B.he} said. The {thing} {found}.",
        "{:glad} {:thanks} {A} took the {thing} home and put it in a safe place.",
        "{:learned} [it helps to think before you search|a thing has its place, and there it is never lost|a friend's eyes can see what you miss]. {:close}" } },
    { CAST_ANY, { { "thing; parts; missing; without; work; result; share", MAKE }, { "price", OWNER } }, {
        "{:opening}",
        "{:day}, {A} wanted to make a {thing}. {A.he} had {parts}. But {A.he} had no {missing}, and {without}. [{A} looked everywhere, but found nothing.|{:sad}]",
        "so {A} went to {B}. `Do you have {missing}?` {A.he} asked. `Yes,` said {B}. `But I would like {price} in return.` [That was fair.|{A} was glad to agree.] So {A} gave {B} {price}, and {B} gave {A} what {A.he} needed.",
        "back at home, {A} {work}. It took a long time, and {A} [had to start again once|worked until it was right|got very tired]. But then it was done, and {result}. {:glad}",
        "{A} called {B} and {C}. `Come and see!` {A.he} said. Each of them got {share}. `[what a fine {thing}|I like your {thing} very much|you did good work]!` said {C}.",
        "{:learned} [good things take time|a thing is twice as good when you share it|a fair trade makes two people happy]. {:close}" } },
    { CAST_ANY, { { "skill; where; fail; tip; success", LEARN } }, {
        "{:opening} [There was only one thing {A.he} could not do.|But {A.he} had one big wish.] {A} wanted to learn to {skill}.",
        "{:day}, {A} tried it {where}. {A.he} {fail}. `I will never learn it,` said {A}. {A.he} tried again, but it was no better. {:sad}",
        "{C} had seen it all. `[it is hard for everyone at first|everyone has to begin somewhere],` said {C}. `Here is my secret. You must {tip}.` {A} [nodded|listened well]. {A.he} wanted to try it [at once|right away].",
        "so {A} practiced every day. On the first day, it was still hard. On the second day, it was a little better. {B} came to watch and said, `[Do not give up|You are getting better|Keep going]!`",
        "after [one week|two weeks|ten days], {A} was {where} again. {A.he} remembered what {C} had said. Then {A} {success}. {:glad} `I knew you could do it,` said {B}.",
        "{:learned} [practice makes hard things easy|no one can do everything the first time|you only lose when you stop trying]. {:close}" } },
    { CAST_ANY, { { "fear; sign; need; truth; lesson", FEAR } }, {
        "once upon a time, there was a {A.kind} named {A}, who lived {home}. {A} was good at many things, but {A.he} was afraid of {fear}.",
        "one evening, {need}. There was no one else to do it. {A} [took a deep breath|put on {A.his} {keep}] and went. {A.his} heart beat fast. Then {sign}. {A} wanted to run home.",
        "{:later}, {B} came by. `Are you afraid?` asked {B}. `Yes,` said {A} in a small voice. `I am afraid of {fear}.` `Then I will go with you,` said {B}. {B.he} [took {A} by the arm|walked close beside {A.him}], and they went on together.",
        "they came closer and closer. {A} looked very carefully. What {A.he} had feared so much was {truth}. First {A} was surprised. Then {A.he} began to laugh, and {B} laughed too.",
        "{:learned} {lesson}. {A.he} was still a little afraid sometimes, but now {A.he} knew what to do. {:close}" } },
    { CAST_ANY, { { "thing; wish; accident; peace", QUARREL } }, {
        "{A} and {B} lived {home}. {A} was a {trait} {A.kind}, and {B} was {A.his} best friend. They did everything together, and they [almost never|hardly ever] had a fight.",
        "{:day}, they were playing with {thing}. Both of them wanted to {wish}. `I was here first,` said {A}. `But it is my turn,` said {B}. They pulled and pushed, until {accident}.",
        "`look what you did!` cried {B}. `It was your fault,` said {A}. They turned away from each other and went home. But at home it was [quiet|dull and lonely]. {A} [sat by the window|could not eat {A.his} supper] and thought of {B}.",
        "the next morning, {A} went to {B}'s door. `I am sorry,` said {A}. `I only thought of myself.` `I am sorry too,` said {B}. Then {peace}. It was much more fun that way.",
        "{C} saw them and smiled. {:learned} [a friend is worth more than any toy|sharing is better than winning|it takes courage to say sorry]. {:close}" } },
    { CAST_CHILDREN, { { "who; trouble; care; better; later", HELP } }, {
        "{:opening}",
        "{:day}, {A} found {who} near {place}. It {trouble}. {A} looked around, but no one else was there. `I will help you,` {A.he} said softly.",
        "[{A} did not know how to help, so {A.he} asked {C}.|{A} ran to {C} and asked what to do.] `You must be gentle and wait,` said {C}. So {A} {care}. At first, nothing changed, and {A} was worried. {B} came to help, and the two of them took turns.",
        "then, [one morning|after three days|at last], {better}. {:glad} `You did that,` said {B}. `No, we did it together,` said {A}.",
        "it never forgot what {A} had done. From then on, it {later}.",
        "{:learned} [a small kindness can grow|those you help do not forget you|it is good to care for those who are weak]. {:close}" } },
    { CAST_CHILDREN, { { "thing; how; repair; result", BROKEN } }, {
        "{:opening}",
        "{:day}, {A} was at {C}'s house. {A} {how}. There was a loud crash. {C}'s {thing} was broken! {A} looked around. No one had seen it.",
        "`I could hide it,` thought {A}. `I could say that the wind did it.` But {A.his} stomach hurt when {A.he} thought of that. {B} saw {A.his} face. `What is wrong?` {B.he} asked, and {A} told {B.him} everything. `You should tell the truth,` said {B}.",
        "so {A} went to {C}. `I broke your {thing},` {A.he} said. `I am very sorry.` {C} was quiet for a moment. `I am sad about the {thing},` said {C}. `But I am glad that you told me the truth. Now let us fix it together.`",
        "they {repair}. It took the whole afternoon, and {A} worked hard. In the end, {result}. {:glad}",
        "{:learned} [the truth is hard to say, but it makes the heart light|a mistake can be mended when you are honest|hiding a mistake is worse than making it]. {:close}" } },
    { CAST_ANY, { { "plant; start; hurry; grown; gift", GROW } }, {
        "{:opening}",
        "{:day}, {C} gave {A} a {start}. `Put it in the earth and give it water,` said {C}. `One day it will be a big {plant}.` {A} put it in the earth near {place} and waited. Nothing happened.",
        "the next day, {A} came back, and still there was nothing to see. {A} could not wait. {A.he} {hurry}. `Why does it take so long?` {A} asked. {B} laughed. `A {plant} has its own time,` {B.he} said. `Give it sun and water, and then let it be.`",
        "so {A} gave it water every morning and did other things in between. [The sun shone, and sometimes it rained.|The days grew longer and warmer.] After a week, there was something green. After a month, it was as high as {A.his} knee. And at the end of the summer, {grown}!",
        "{:glad} Then {A.he} {gift}. `It was worth the wait,` said {B}.",
        "{:learned} [good things need time|you cannot hurry a thing that grows|care every day is better than a lot at once]. {:close}" } },
    { CAST_ANY, { { "contest; wrong; right; win; lesson", CONTEST } }, {
        "{A} and {B} lived {home}. {B} was a proud {B.kind}. `I am the best at everything,` {B.he} said every day. {A} was {trait} and only smiled.",
        "one day, there was a {contest}. Everyone came to watch. {C} was the judge. `You have no chance,` {B} said to {A}. `Maybe,` said {A}. `But I will try.`",
        "at first, {B} was far ahead. But then {B} {wrong}. {A} did not look left or right. {A} {right}.",
        "in the end, {A} {win}. {A} had won! Everyone [clapped and cheered|called {A.his} name]. {B} was very quiet. Then {B.he} came over. `You were better than me today,` {B.he} said. `Can you show me how you did it?`",
        "`of course,` said {A}. They practiced together the next day, and {B} never again said that {B.he} was the best at everything. They had both learned that {lesson}." } },
};
const int SYNTH_STORY_COUNT = COUNT_OF(SYNTH_STORIES);
/* clang-format on */
