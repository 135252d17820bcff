/* The synthetic corpus: the articles. A fact that is stated once comes back later in the same
 * words, so that a model has something to remember. Data only; long lines are sentences. */
#include "shards/synth_internal.h"

/* clang-format off */

/* ---- animals --------------------------------------------------------------------------------- */
static const char *const ANIMALS[] = {
    "bee; bees; a small insect; in a hive with many others; the sweet juice of flowers; thin wings; fly from flower to flower; larva; cold and rain; carry the dust that makes fruit grow",
    "horse; horses; a large animal; in a stable or on a wide field; grass and hay; long legs; run fast and far; foal; deep mud and hard roads; pull carts and carry people",
    "duck; ducks; a water bird; near ponds and slow rivers; plants and small fish; feet like paddles; swim without getting tired; duckling; foxes and large birds; give eggs and soft feathers",
    "cow; cows; a large farm animal; in a barn in winter and on a field in summer; grass and hay; four parts in the stomach; use grass that people cannot eat; calf; wet ground and bad hay; give milk for butter and cheese",
    "owl; owls; a bird of the night; in old trees and quiet barns; mice and large insects; big eyes; see when it is almost dark; chick; cold winters with deep snow; keep mice away from the corn",
    "sheep; sheep; a farm animal; in a group on hills and fields; grass and herbs; a thick coat of wool; stay warm in the wind; lamb; wolves and wild dogs; give wool for warm clothes",
    "squirrel; squirrels; a small animal of the forest; in nests high up in the trees; nuts and seeds; a long and thick tail; keep their balance when they jump; pup; hawks and cold winters; plant new trees with the nuts they forget",
    "ant; ants; a tiny insect; under the ground in a nest with many rooms; seeds and sweet things; strong jaws; carry things that are heavier than they are; larva; floods and hungry birds; turn the earth and keep it soft",
    "cat; cats; a small hunter; in houses and on farms; meat and fish; soft feet with sharp claws; walk without a sound; kitten; busy roads and large dogs; keep mice away from the house",
    "whale; whales; the largest animal of the sea; in all the oceans of the world; tiny sea animals and small fish; a thick layer of fat; stay warm in cold water; calf; nets and loud ships; help the sea to stay full of life", NULL };

/* ---- towns that do not exist ------------------------------------------------------------------ */
static const char *const TOWNS[] = {
    "[Mill|Stone|Green|Oak|Bright|North|Red|Silver][brook|field|bridge|wood|ford|hill|port]", NULL };
static const char *const TOWN_FACTS[] = {
    "[300|400|600|800|900]; [bread|cheese|honey|apples|red pots|warm coats|wooden toys|blue cloth]; [Monday|Tuesday|Wednesday|Thursday|Friday|Saturday]; river; fish in the clean water; in spring, the water can rise up to the doors",
    "[200|500|700|1000]; [wine|wool|butter|pears|good shoes|green glass|small bells]; [Monday|Tuesday|Wednesday|Thursday|Friday|Saturday]; forest; pick berries under the trees; in autumn, the wind brings down old branches",
    "[250|450|650|850]; [smoked fish|salt|small boats|rope|strong nets]; [Monday|Tuesday|Wednesday|Thursday|Friday|Saturday]; sea; sail out in the early morning; in winter, high waves come over the wall", NULL };
static const char *const TOWN_SIGHTS[] = {
    "an old tower with a big bell; the bell; rings at noon", "a round well in the middle of the town; the well; is older than the houses",
    "a bridge made of gray stone; the bridge; has stood for [two|three] hundred years", "a school with a green door; the school; has only [three|four|five] rooms",
    "a tall tree on the main square; the tree; gives shade in the summer", NULL };

/* ---- people at work ---------------------------------------------------------------------------- */
static const char *const JOBS[] = {
    "baker; bakes bread and cakes; four; oven; the dough needs time to grow before it goes into the oven; fresh bread for breakfast",
    "farmer; grows corn and looks after cows; five; tractor; the cows must be milked before the sun is up; milk and corn",
    "fisher; catches fish with long nets; three; small boat; the fish swim near the top of the water before the day grows warm; fresh fish for dinner",
    "gardener; plants trees and flowers; six; spade; it is best to water the plants before the day grows hot; flowers in the park",
    "bus driver; takes people to work and to school; five; long yellow bus; the first people want to be in the city before seven; a safe ride",
    "nurse; looks after sick people; six; little book for notes; the people on the night shift want to go home; kind words and good care",
    "carpenter; makes tables, chairs and doors; seven; saw; the best light for careful work comes in the morning; a door that closes well",
    "teacher; teaches children to read and write; six; box of chalk; there is a lot to prepare before the children come; the first words a child can read", NULL };
#define PERSON "name; he; him; his; age; child; parent"
static const char *const PEOPLE[] = {
    "[Anna|Clara|Emma|Maria|Julia] [Stone|Wood|Field|Baker|Brook]; she; her; her; [thirty|forty|fifty]; [ten|twelve]; mother",
    "[Peter|Paul|David|Martin|Henry] [Stone|Wood|Field|Baker|Brook]; he; him; his; [thirty|forty|fifty]; [ten|twelve]; father", NULL };

/* ---- how to do a thing ------------------------------------------------------------------------- */
static const char *const RECIPES[] = {
    "vegetable soup; carrots, potatoes and an onion; a big pot; cut the vegetables into small pieces; put them into the pot with water and a little salt; cook the soup for [twenty|thirty] minutes; the vegetables are soft; warm bread",
    "pancakes; flour, milk and two eggs; a flat pan; mix the flour, the milk and the eggs in a bowl; put a little butter into the hot pan and pour in some of the mix; bake each pancake for [two|three] minutes on each side; both sides are golden; sugar or jam",
    "apple jam; apples, sugar and the juice of a lemon; a heavy pot; wash the apples and cut them into small pieces; put them into the pot with the sugar and the juice; cook them for [forty|fifty] minutes and stir often; a drop of jam stays firm on a cold plate; fresh bread",
    "bread; flour, water, salt and yeast; a hot oven; mix everything in a bowl and work the dough with your hands; cover the bowl and let the dough rest for an hour; bake the bread for [forty|fifty] minutes; it sounds hollow when you knock on it; butter and salt",
    "fruit salad; apples, pears and berries; a large bowl; wash the fruit and take out the seeds; cut everything into small pieces and put it into the bowl; add some juice and let it rest for [ten|fifteen] minutes; the fruit has taken up the juice; cold cream", NULL };

/* ---- plants ---------------------------------------------------------------------------------- */
static const char *const PLANTS[] = {
    "tomatoes; [eight|ten] weeks; every day; full sun; yellow leaves; too much water; red and soft to the touch; a fresh salad",
    "carrots; [ten|twelve] weeks; twice a week; full sun or light shade; short and crooked roots; stones in the ground; as thick as a thumb; a warm soup",
    "beans; [seven|eight] weeks; every second day; full sun; small holes in the leaves; hungry snails; as long as a hand; a stew with potatoes",
    "strawberries; [twelve|fourteen] weeks; every day in dry weather; full sun; gray spots on the fruit; wet ground below the plant; red on every side; a cake",
    "potatoes; [fourteen|sixteen] weeks; once a week; full sun; green spots on the skin; light that falls on the potatoes; ready, because the leaves above have turned brown; a hot meal in winter",
    "lettuce; [six|seven] weeks; every morning; light shade; tall and bitter plants; too much heat; as big as two hands; a green salad", NULL };

/* ---- why things happen ------------------------------------------------------------------------- */
static const char *const CAUSES[] = {
    "does it rain; the sun warms the sea, and some of the water goes up into the air; high up, the air is cold, so the water turns into tiny drops; the drops come together and make clouds; when the drops are too heavy, they fall down as rain; without the heat of the sun, there would be no rain; clouds",
    "does bread rise; the baker puts yeast into the dough; yeast is alive and eats the sugar in the flour; while it eats, it makes a gas, and the gas makes little holes in the dough; so the dough grows until it is twice as big; without yeast, the bread would be flat and hard; small holes",
    "do leaves fall in autumn; in autumn, the days are short and the light is weak; the leaves cannot make much food from weak light; the tree takes back what is useful in the leaves, so the green goes away; the tree lets the leaves go; without its leaves, the tree needs less water in the cold months; yellow leaves",
    "do boats float; a boat is heavy, but it is full of air; when it sits in the water, it pushes some of the water away; the water pushes back from below; the boat sinks only until the push from below is as strong as its weight; with a hole in its side, it would fill with water and sink; wide boats",
    "does the moon change its shape; the moon has no light of its own and only gives back the light of the sun; it goes around the earth once in about four weeks; so we see its bright side from another place each night; sometimes we see all of it, and sometimes only a thin line; without the sun, we would not see the moon at all; a thin moon",
    "does ice melt; in ice, the tiny parts of water hold each other tight; heat makes these parts move faster and faster; when they move fast enough, they cannot hold each other any longer; the hard ice turns into water; in a cold place, the ice would stay hard for years; drops of water", NULL };

/* ---- things we use ----------------------------------------------------------------------------- */
static const char *const THINGS[] = {
    "bicycle; bicycles; the two wheels; go from place to place without a motor; the legs push the pedals, and a chain turns the back wheel; need no fuel; keep air in the tires and oil on the chain; the chain gets dry and breaks",
    "clock; clocks; the hands; tell the time of day; a spring or a battery turns small wheels, and the wheels move the hands; never get tired; change the battery and keep out the dust; the clock runs slow and shows the wrong time",
    "lamp; lamps; the bulb; give light after the sun goes down; electric current makes a part inside the bulb shine; work with one small switch; turn it off when nobody is in the room; the bulb burns out before its time",
    "umbrella; umbrellas; the round roof of cloth; keep people dry in the rain; thin metal arms open the cloth like the wings of a bird; fold up to a small size; dry it in the open air after use; the cloth gets weak and the metal gets rust",
    "windmill; windmills; the long arms; turn the wind into useful work; the wind pushes the arms, and the arms turn a heavy stone or a machine; need nothing but wind; stop the arms in a storm; the arms turn too fast and break",
    "lantern; lanterns; the glass on all sides; carry light through wind and rain; a flame burns oil inside, and the glass keeps the wind away from it; need no electric current; clean the glass every week; the glass turns black and the light grows weak", NULL };

const synth_frame SYNTH_ARTICLES[] = {
    { CAST_NONE, { { "one; many; what; home; food; part; use; young; danger; good", ANIMALS }, { PERSON, PEOPLE }, { "town", TOWNS } }, {
        "[the|a] {one} is {what}. {many} live {home}. [They are found in many parts of the world.|People have known them for a very long time.|Many children can name them.] [This text tells how they live and why they matter.|Here is what everyone should know about them.]",
        "[most of the time, {many} eat {food}.|the food of {many} is simple: they eat {food}.] [They look for it in the morning and in the evening.|They need to eat every day to stay strong.|] {many} have {part}. That helps them to {use}.",
        "{name} from {town} has watched {many} for [five|ten|fifteen|twenty] years. `[I learn something new every week|They are never dull|You need time and a quiet place|The more I see, the more I like them],` {he} says. `[Look|Just look] how they {use}!`",
        "a young {one} is called a {young}. [It grows fast in the first weeks.|At first, it is small and weak.] The mother or the group takes care of it, [because|since] a {young} cannot live alone. The greatest dangers for {many} are {danger}. [{name} has seen that more than once.|]",
        "{many} are also useful, because they {good}. [So the next time you see a {one}, watch it for a while.|If you are quiet, you can watch a {one} from close by, just like {name}.] And remember: {many} have {part}, and that helps them to {use}." } },
    { CAST_NONE, { { "town", TOWNS }, { "people; product; day; by; can; trouble", TOWN_FACTS }, { "sight; short; fact", TOWN_SIGHTS } }, {
        "{town} is a small town near the {by}. About {people} people live there. [The town is known for its {product}, and for {sight}.|It is known for two things: its {product}, and {sight}.]",
        "every {day}, there is a market on the main square. [People come from far away|Farmers come in the early morning|Old and young people meet there] to sell and to buy. Most visitors who come to {town} want to take home some {product}. [By the afternoon, everything is sold.|When the market is over, the square is empty again.|]",
        "life near the {by} is [good|quiet|simple], because people can {can}. But it is not always easy: {trouble}. Then the people of {town} help each other, and {people} people can do a lot when they work together.",
        "visitors should also see {sight}. {short} {fact}. [The best day for a visit is {day}, because of the market.|If you come on {day}, you can see the market as well.] And do not go home without some {product}!" } },
    { CAST_NONE, { { "job; does; hour; tool; reason; thanks", JOBS }, { PERSON, PEOPLE }, { "town", TOWNS } }, {
        "{name} is a {job} in {town}. {he} is {age} years old. [Every day, {he} {does}.|Six days a week, {he} {does}.]",
        "the day begins early. {name} gets up at {hour} o'clock in the morning, because {reason}. The most important tool is the {tool}. `Without my {tool}, I could not do my work,` says the {job}.",
        "{name} wanted to be a {job} from the age of {child}. `My {parent} was a {job} too,` {he} says. `I watched every day, and then I was allowed to help.` [It took years to learn everything.|There was a lot to learn.|] Now other people come to {him} to learn.",
        "is it hard to get up at {hour}? `Yes, at first it was,` says {name} and laughs. `But people are happy with my work, and that makes me happy too.` In {town}, everyone is glad to have {thanks}. And so the {job} will get up at {hour} again tomorrow." } },
    { CAST_NONE, { { "dish; need; vessel; first; second; third; sign; with", RECIPES }, { PERSON, PEOPLE }, { "town", TOWNS } }, {
        "[it is easy to make {dish} at home.|Anyone can make {dish} at home.] You need {need}. You also need {vessel}. [Children can do it too, but a grown person should help.|Read all the steps before you begin.|]",
        "this is how {name} from {town} does it. `My {parent} showed it to me when I was {child} years old,` {he} says. `[I have never changed a thing|I still do it the same way|It has always worked].`",
        "first, {first}. [Take your time, because good work at the start makes the rest easy.|Do not hurry.|] Then {second}.",
        "after that, {third}. How do you know that it is done? It is done when {sign}. [If it is not, wait a little longer.|If you are not sure, wait a few minutes and look again.]",
        "{dish} should be eaten with {with}. [What is left can be kept in a cool place until the next day.|It is even better when you share with friends, as {name} does.] If something goes wrong, do not worry. Make sure that you have {need}, and try again." } },
    { CAST_NONE, { { "plant; weeks; water; light; problem; cause; ripe; meal", PLANTS }, { PERSON, PEOPLE }, { "town", TOWNS } }, {
        "many people grow {plant} in the garden. [It is not hard, but it takes some care.|You do not need a lot of room for it.] From the seed to the plate, it takes about {weeks}.",
        "{plant} need {light}. Put the seeds into soft earth, not too deep, and cover them. Give them water {water}. [Do it early, before the sun is high.|Use water that is not too cold.|] Pull out the weeds, because they take light and food from the {plant}.",
        "{name} has a garden in {town} and has grown {plant} for many years. `Sometimes there is a problem,` {he} says. `If you find {problem}, the reason is often {cause}. [Then you must act soon.|Look at the plants often, so that you see it in time.]` Once you have taken care of {cause}, the plants can grow well again.",
        "after {weeks}, look closely. You can bring in your {plant} when they are {ripe}. They taste best on the same day. [{name} uses them for {meal}, and gives some to the neighbors.|With your own {plant} you can make {meal}.]" } },
    { CAST_NONE, { { "question; one; two; three; four; without; see", CAUSES }, { PERSON, PEOPLE }, { "town", TOWNS } }, {
        "why {question}? [Many people ask this question.|Children often ask this, and the answer is not hard.|]",
        "{name} is a teacher in {town}. Every year, someone in the class asks {him}: `Why {question}?` [Then {he} smiles|Then {he} goes to the board], because {he} likes this question. `It happens step by step,` says {name}. `[Every|Each] step has a cause.`",
        "first, {one}. Next, {two}.",
        "after that, {three}. In the end, {four}.",
        "so one thing leads to the next. {without}. [You can see a sign of all this yourself: look for {see}.|The next time you see {see}, you will know why.] [And if someone asks you, you can answer just like {name}.|]" } },
    { CAST_NONE, { { "one; many; part; use; how; plus; care; else", THINGS }, { PERSON, PEOPLE }, { "town", TOWNS } }, {
        "a {one} is a useful thing. People use it to {use}. [There is one in almost every town.|Most people have used one.|] If you look at a {one}, you first see {part}.",
        "how does it work? It is simple: {how}. [That is the whole secret.|Nothing more is needed.|] {many} have one great advantage: they {plus}.",
        "but a {one} needs some care. In {town}, people bring their old {many} to {name}. `The rule is simple,` {he} says. `[I tell it to everyone|Do not forget it]: {care}. If you forget this, {else}.` [A little work now saves a lot of work later.|That happens to many people who are in a hurry.]",
        "a good {one} can last for many years. {name} has one that {his} {parent} bought [twenty|thirty|forty] years ago. So remember the rule: {care}. Then it will help you to {use} for a long time." } },
};
const int SYNTH_ARTICLE_COUNT = COUNT_OF(SYNTH_ARTICLES);
/* clang-format on */
