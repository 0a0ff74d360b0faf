"""The words that prompts are made of: ours, plain, and chosen so that the sentence patterns read as English.

Order matters: a word's place in these tables decides which content a key has, so a change here changes every
prompt (the plan digest does not see it). Append at the end of a table only with a new major version.
"""

# ruff: noqa: SIM905 (word lists read better as text)

from __future__ import annotations

NAMES = """
Ada Adrian Agnes Alma Amos Anders Anita Anton Arne Astrid Aurora Basil Beatrice Benno Berta Boris Bruno
Camilla Carlos Celia Cesar Clara Conrad Cora Dagmar Damian Daphne Delia Diego Dora Edgar Edith Elena
Elias Ella Emil Emma Ernest Esther Eva Fabian Felix Fiona Flora Frida Gabriel Gemma Georg Gerda Greta
Gustav Hanna Harold Hector Hedda Helena Henry Hilda Hugo Ida Igor Ines Ingrid Irene Isaac Isabel Ivan
Jakob Janet Jasper Joan Jonas Judith Julia Karin Karl Kaspar Katya Klara Lars Laura Leo Leonie Lina Louis
Lucia Lukas Luna Magda Malte Marcus Maria Marta Matteo Maud Max Mila Miriam Mona Moritz Nadia Nils Nina
Nora Olaf Olga Oscar Otto Pablo Paula Petra Philip Quentin Rafael Ralf Rebecca Rita Robert Rolf Rosa Ruth
Samuel Sara Selma Simon Sofia Sonja Stella Sven Tamara Theo Thomas Tilda Tobias Ulla Ursula Valentin Vera
Victor Viola Walter Wanda Willem Xenia Yara Yvonne Zora
""".split()

SURNAMES = """
Abbott Adler Ainsley Albright Ansel Archer Arden Ashby Atwood Bailey Barlow Becker Bellamy Berg Blackwood
Blom Bolton Bowen Brandt Brook Calder Carver Castell Chandler Clay Cooper Craven Dahl Dalton Darby Denham
Dexter Drake Dunn Eastman Eckhart Ellery Emery Fairfax Falk Farrow Fenwick Finch Fisher Fleming Forrest
Foster Frost Gardner Garrick Gale Gibson Glover Goodwin Granger Greaves Hale Halloran Hammond Hardy
Harlow Hart Hawkins Heath Holm Holt Hooper Hudson Ivers Jarvis Jensen Keller Kendal Kerr Kingsley Knight
Lake Lambert Lang Larkin Lindgren Locke Lowell Marlow Marsh Mason Mercer Merrill Moreau Mortimer Napier
Nash Norris North Nyberg Oakley Osborne Paget Palmer Parrish Pascal Pearce Penrose Pryor Quill Radcliffe
Rawson Reeve Ridley Rivers Roth Rowan Sanders Saunders Sawyer Shaw Shepherd Sinclair Stroud Sutton Tanner
Thorne Tiller Turner Tyndall Underhill Vance Vaughan Vogel Wainwright Walden Warner Webb Weller Whitlock
Wilder Winslow Wolf Woodward Wren Wyatt Yates York Zeller
""".split()

ADJECTIVES = """
able absent ample ancient amber ashen austere awkward bare basic bitter blank bleak blunt bold brass
brief bright brisk brittle broad broken bronze calm candid careful cautious central cheap cheerful civil
clean clear clever close cloudy coarse cold common complete complex cool copper costly cotton crisp
crooked crowded curious curved damp daring dark dead decent deep delicate dense dim direct distant double
dry dull dusty eager early eastern easy elder empty endless equal even exact extra faded faint fair
faithful false famous fast feeble fierce final fine firm flat foreign formal fragile frank free fresh
friendly frozen full gentle glad global golden grand grave great green grey hard harsh hasty heavy hidden
high hollow honest humble icy idle immense inner iron joint keen kind large last late lean light little
local lonely long loose loud low loyal lucky marble mean mild minor misty mixed modern modest mossy muddy
narrow native neat nervous new noble northern oak odd old open orange outer pale patient plain polite
poor precise private proud public pure quick quiet rapid rare raw ready recent regular remote rich rigid
ripe robust rough round royal rural rusty sad safe salty scarce secret serious severe shallow sharp shiny
short shy silent silver simple single sleepy slender slow small smooth sober soft solid southern spare
special steady steep stern stiff still strange strict strong sturdy sudden sunny sweet swift tall tame
tender thick thin tidy timber tired tiny tough urgent usual vague vast vivid warm weak wealthy weary
western wet whole wide wild windy wise wooden yellow young zealous
""".split()

NOUNS = """
anchor apple archive arrow artist atlas attic autumn baker balcony banner barge barrel basket beacon bell
bench berry blanket boat book border bottle bowl branch bread brick bridge broom bucket builder button
cabin cable candle canvas captain carpet cart castle cave cellar chain chair chapel chapter chest circle
citizen clerk cliff clock cloth cloud coast coat coin colour column compass copper corner cottage council
counter courtyard cradle crane crew crowd crown cupboard curtain dancer desk diary doctor door drawer
drum editor engine envelope evening fabric factory farmer feather fence ferry fiddle field finger fire
flag flame floor flour flower forest fountain frame friend garden gate giant glass glove grain guard
guest guide hammer harbour harvest hedge helmet hill hinge horse hotel house hunter island jacket jar
journal journey judge kettle kitchen knife ladder lake lamp lantern lawyer leaf ledger lemon letter
library lighthouse line lock machine map market mast meadow melody merchant message miller mirror mist
monument morning motor mountain museum needle neighbour nest network notebook novel number nurse oar
office olive onion orchard order organ oven owner page painter palace paper parcel path pattern pencil
pepper piano picture pilot pillar pipe planet plate platform plough pocket poem poet pond porter potter
printer prison puzzle quarry queen question rail rain record ribbon ridge river road roof room rope route
rower sailor saddle salt school screen season shadow shelf shell shepherd ship shore signal singer sister
sketch smith soldier song spade spring square stable stage stair station statue steam stone storm story
stove street student summer surgeon table tailor teacher temple tent theatre thread ticket tide tile tool
tower town track trader train tree trumpet tunnel valley vase vessel village violin voice wagon wall
warden watch water weaver well wheel willow wind window winter witness workshop writer yard
""".split()

VERBS = """
accepted admired adopted answered approached arranged avoided balanced blamed borrowed bought broke
brought built buried burned called carried carved caught changed chased checked chose cleaned climbed
closed collected compared copied counted covered crossed cut dared decorated defended delayed delivered
described designed destroyed discovered discussed divided dragged drew dropped dusted earned emptied
entered examined exchanged explained explored fed filled finished fixed followed forgave forgot found
gathered gave greeted guarded guessed guided handled heard helped hid held hired ignored imagined
improved inherited inspected invented invited joined judged kept kicked labelled learned left lent lifted
liked listed loaded locked lost loved made marked measured mended met missed mixed moved named needed
noticed offered opened ordered packed painted passed patched placed planned planted polished praised
prepared pressed printed promised protected proved pulled pushed questioned raised reached read recalled
received recorded refused remembered removed rented repaired repeated replaced rescued restored returned
rolled saved saw searched seized selected sent served settled shaped shared shook showed signed sketched
sold solved sorted spared spent split stacked stole stopped stored studied supplied swept tested thanked
tied took touched traced traded trained translated trusted turned valued visited warned washed watched
weighed wrapped wrote
""".split()

ADVERBS = """
again alone almost always badly barely boldly briefly brightly calmly carefully cheaply clearly closely
coldly daily deeply early easily eagerly entirely fairly finally firmly freely gently gladly gravely
hardly hastily heavily honestly humbly idly indeed kindly lately lightly loudly mildly mostly neatly
nearly nervously nightly often openly partly patiently plainly politely promptly proudly quickly quietly
rapidly rarely readily roughly sadly safely secretly seldom sharply shortly silently simply slowly
smoothly softly soon steadily still suddenly surely swiftly tightly together twice usually warmly weekly
wisely yearly
""".split()

PLACES = """
Aldermoor Ashford Bexley Birchwood Blackmere Bramley Brightwater Caldbeck Carrow Cedarhurst Clearwell
Coldharbour Cranbrook Crestfall Dunmore Dunwich Eastbourne Eldergrove Elmstead Fairhaven Farleigh
Fernhill Foxcombe Glenmoor Goldcrest Grayling Greenhithe Halewood Harrowgate Hartland Hazelmere Highcliff
Hollowbrook Ironbridge Kestrel Kingsbridge Lakemoor Langford Larkspur Lindale Longmeadow Lowmarsh
Maplewood Marston Millbrook Moorgate Netherby Northgate Oakhaven Oldbridge Orchardton Pinecrest Portland
Quarrywood Ravenscar Redcliff Ridgeway Rivermouth Rosedale Saltmarsh Sandhurst Seaford Silverdale
Southwell Stonebridge Summerfield Thornbury Tidewater Underwood Valebrook Westmere Whitstone Willowby
Windermoor Winterbourne Woodhall Yarrow
""".split()

TIMES = """
yesterday today tonight afterwards beforehand overnight eventually meanwhile recently nowadays formerly
instantly later earlier sometimes once
""".split()

JOINERS = "and but while because although until before after since so unless whenever".split()

ARTICLES = "the a this that every some another each".split()

PREPOSITIONS = "near behind beside above below beyond across under inside outside against around".split()

FUNCTION_WORDS = "of from to with by who which was had said".split()

MARKS = (".", ",", ";", ":", "?", "!")
