"""Word lists of the generated text. Their order is part of the data: a seed picks by position."""

NAMES = (
    "Anna Ben Carla David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olga Peter Quinn Rosa Sam Tina Uma "
    "Victor Wendy Xavier Yara Zoe Amir Bella Chen Dora Eric Fiona George Hana Ivan Julia Kenji Lily Marco Nina"
).split()

ITEMS = (
    "apples books cards coins pens stickers marbles cookies eggs stamps shells buttons oranges candles balls flowers "
    "toys stones pencils cups plates bottles keys tickets photos maps boxes lamps hats"
).split()

CONTAINERS = (
    "boxes bags baskets packs jars trays shelves drawers"
).split()

ADJECTIVES = (
    "red blue green old young small big quick quiet brave happy lazy clever gentle proud shy bright dark cold warm "
    "silver golden tiny huge soft hard early late sweet wild"
).split()

ANIMALS = (
    "fox bear cat dog owl mouse rabbit horse duck goat lion tiger wolf frog crow bee ant whale turtle hen pig cow "
    "deer swan snake seal crab hawk moose zebra"
).split()

NOUNS = (
    "river mountain forest garden bridge castle window table stone letter clock boat train lamp mirror candle village "
    "city island valley tower market harbor desert meadow cloud storm shadow winter summer tunnel engine violin "
    "pencil bottle ladder basket hammer blanket"
).split()

CITIES = (
    "Paris London Berlin Madrid Rome Vienna Oslo Cairo Tokyo Delhi Lima Dublin Prague Athens Seoul Boston Chicago "
    "Toronto Sydney Lisbon Warsaw Zurich Geneva Kyoto Milan Venice Dallas Denver Austin Havana"
).split()

JOBS = (
    "teacher doctor farmer baker pilot nurse painter writer driver singer lawyer cook builder tailor dancer engineer "
    "gardener student actor judge"
).split()

COLOURS = (
    "red blue green black white yellow orange purple brown pink gray"
).split()

FOODS = (
    "bread soup rice cheese salad fish cake pasta honey milk tea coffee juice butter"
).split()

DAYS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
).split()

TOOL_VERBS = (
    "get find send book set create delete play open close update search read write start stop check order"
).split()

TOOL_OBJECTS = (
    "weather hotel email table alarm note file song door light price flight ticket message event report map task room "
    "taxi"
).split()
