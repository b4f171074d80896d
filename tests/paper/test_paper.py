"""The paper as data: complete, each number as printed, each recipe one that can be built."""

import re

import pytest
from shared_files import SHARED, needs

from balcal import registry
from balcal.core import BalcalError
from balcal.methods.balcal import Balanced
from balcal.paper import ITEMS, item
from balcal.paper.items import BESIDE, LOGITS, MEASURES, NAMES
from balcal.paper.published import MAIN, VARIANTS
from balcal.paper.tiers import PLACES, TIERS, tier

TEX = SHARED / "spec" / "paper.tex"
TABLES = {name: found for name, found in ITEMS.items() if found.kind == "table"}
ARROWS = {"↑": "higher", "↓": "lower"}


def tabular(label):
    """Rows of cells of the table with this label, as LaTeX has them; a cell over n columns stands n times."""
    source = re.sub(r"(?<!\\)%.*", "", TEX.read_text())
    [body] = [t for t in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table", source, re.S) if f"{{{label}}}" in t]
    inside = re.search(r"\\begin\{tabular\}\{[^\n]*\}\n(.*?)\\end\{tabular\}", body, re.S)[1]
    inside = re.sub(r"\\(top|mid|bottom)rule|\\cmidrule\{[^}]*\}|\\hline|\\rowcolor\{[^}]*\}", "", inside)
    for line in inside.split(r"\\"):
        cells = []
        for cell in line.split("&"):
            wide = re.match(r"\s*\\multicolumn\{(\d+)\}\{[^}]*\}(.*)", cell, re.S)
            cells += [plain(wide[2])] * int(wide[1]) if wide else [plain(cell)]
        if any(cells):
            yield cells


def plain(cell):
    """Without citations, weights of type and colours."""
    cell = re.sub(r"\\multirow\{\d+\}\[\d+\]\{\*\}", "", cell)
    cell = re.sub(r"\\citep?\{[^}]*\}|\\phantom\{[^}]*\}|\$\^\*\$|\$\\textcolor.*?\$", "", cell)
    cell = re.sub(r"\\(textbf|underline|textsubscript|text|boldsymbol|multicolumn)\b", "", cell)
    return re.sub(r"[{}$\s]|\\", "", cell)


def numbers(cell):
    return [float(found) for found in re.findall(r"\d+\.\d+", cell)]


def printed(label):
    """For each row of figures, its numbers in order, spreads and parentheses included; the names in front of them."""
    for cells in tabular(label):
        first = next((i for i, cell in enumerate(cells) if re.match(r"[\d.]+[\d(±]|-$", cell)), None)
        if first is not None and "↑" not in "".join(cells) and sum(map(len, map(numbers, cells))) > 1:
            yield cells[:first], cells[first:]


def ours(found):
    for row in found.rows:
        cells = [cell for cell in found.cells if cell.row == row]
        if row in BESIDE or row.endswith(LOGITS):
            assert not any(cell.published for cell in cells)
            continue
        yield row, [x for c in cells if (p := c.published) for x in (p.value, p.spread) if x is not None]


@needs(TEX)
@pytest.mark.parametrize("name", [n for n in TABLES if n != "alpha"])
def test_every_printed_number_is_in_its_cell(name):
    theirs = list(printed(ITEMS[name].label))
    mine = list(ours(ITEMS[name]))
    assert len(theirs) == len(mine) > 1
    for (names, cells), (row, values) in zip(theirs, mine, strict=True):
        assert [x for cell in cells for x in numbers(cell)] == values, row
        if row in NAMES:
            assert names == [row]


@needs(TEX)
def test_every_number_of_the_alpha_table_is_in_its_cell():
    """Its rows begin with the strength of mixing, and the data set stands in the first of six only."""
    place, theirs = None, {}
    for cells in tabular("tab:mixup"):
        if "ACC↑" in cells or re.fullmatch(r"\d\.\d", cells[1]) is None:
            continue
        place = cells[0] or place
        theirs[f"{place} {cells[1]}"] = [x for cell in cells[2:] for x in numbers(cell)]
    assert theirs == dict(ours(ITEMS["alpha"]))
    assert len(theirs) == 18


@needs(TEX)
@pytest.mark.parametrize("name", [n for n in TABLES if n not in ("cost", "variants")])
def test_columns_measure_what_is_printed_above_them(name):
    """The line with the arrows names measures and directions."""
    [heads] = [cells for cells in tabular(ITEMS[name].label) if any(a in "".join(cells) for a in ARROWS)]
    theirs = [(cell[:-1].upper(), ARROWS[cell[-1]]) for cell in heads if cell[-1:] in ARROWS]
    mine = [(MEASURES[m].label.upper(), MEASURES[m].better) for _, m in ITEMS[name].columns]
    if name == "main":
        assert mine.pop() == ("ECE", "lower")  # the average stands over two lines
    assert theirs == mine


@needs(TEX)
@pytest.mark.parametrize("name", ["main", "ood", "variants", "combination", "gamma", "ood-confidence"])
def test_columns_belong_to_the_data_set_printed_above_them(name):
    heads = next(c for c in tabular(ITEMS[name].label) if {"CIFAR-10", "CIFAR-100", "SVHN"} <= set(c))
    theirs = [cell for cell in heads if cell in ("CIFAR-10", "CIFAR-100", "SVHN")]
    mine = [next(c for c in ITEMS[name].cells if (c.column, c.measure) == key).asks for key in ITEMS[name].columns]
    places = [asks[0].place for asks in mine if len(asks) == 1]
    if name == "variants":
        places = [p for i, p in enumerate(places) if i % 4 < 2]  # ECEs with and without TS share a column
    assert places == theirs


@needs(TEX)
def test_every_label_of_the_paper_is_an_item():
    """Except the drawing of the method, and the parts of a figure."""
    labels = set(re.findall(r"\\label\{((?:fig:|tab:|figure )[^}]*)\}", TEX.read_text()))
    left_out = {"fig:overall", "fig:motivation-a", "fig:motivation-b", "fig:motivation-c"}
    assert {found.label for found in ITEMS.values() if found.label} == labels - left_out


def test_averages_of_the_main_table_are_averages_but_for_those_that_the_notes_name():
    off = {
        row: average
        for row, (*_, average) in MAIN.items()
        if abs(sum(MAIN[row][i].value for i in (1, 4, 7)) / 3 - average.value) > 0.0051
    }
    assert set(off) == {"Ours"}
    assert any("1.77" in note and "1.74" in note for note in ITEMS["main"].notes)


@pytest.mark.parametrize("tier_name", TIERS)
def test_every_recipe_can_be_made(tier_name):
    chosen = tier(tier_name)
    for found in ITEMS.values():
        asks = found.asks(chosen)
        assert asks or found.id == "cost"
        assert len(asks) == len(set(asks))
        made = [ask.recipe(chosen, 0) for ask in asks]
        if tier_name in ("smoke", "paper"):
            assert None not in made
        for recipe in filter(None, made):
            assert recipe.task.backbone.startswith("timm:") or recipe.task.backbone in registry.table("backbones")


def test_the_paper_tier_is_the_published_protocol():
    chosen = tier("paper")
    recipe = item("main").cells[0].asks[0].recipe(chosen, 0)
    assert (recipe.task.backbone, recipe.task.plan.epochs, recipe.task.plan.lr) == ("wrn-28-10", 600, 1e-4)
    assert set(chosen.places) == set(PLACES)
    acls = {c.asks[0].place: c.asks[0].recipe(chosen, 0).method.loss for c in item("main").cells if c.row == "ACLS"}
    assert [acls[p].margin for p in ("CIFAR-10", "CIFAR-100", "SVHN")] == [6, 10, 10]
    mmce = {c.asks[0].place: c.asks[0].recipe(chosen, 0).method.loss for c in item("main").cells if c.row == "MMCE"}
    assert [mmce[p].weight for p in ("CIFAR-10", "CIFAR-100", "SVHN")] == [1.5, 0.5, 1.5]


def test_beta_is_k_where_mixing_is_strong():
    cells = [c for c in item("alpha").cells if c.column == "Mixup+Ours" and c.measure == "ece"]
    asked = {float(c.row.split()[1]): c.asks[0].method for c in cells if not c.row.endswith(LOGITS)}
    assert asked[0.1] == "balcal+mixup"
    assert {method for alpha, method in asked.items() if alpha > 0.1} == {"balcal-k+mixup"}
    fused = {float(c.row.split()[1].strip(",")): c.asks[0].recipe(tier("paper"), 0) for c in cells[18:]}
    assert {recipe.method.head.fusion for recipe in fused.values()} == {"logits"}
    assert {alpha: recipe.method.head.beta for alpha, recipe in fused.items()} == dict.fromkeys(fused, "K") | {0.1: 1}


@pytest.mark.parametrize("name", ITEMS)
def test_wherever_ours_is_shown_both_fusions_are(name):
    """As the paper writes it, and as the code behind its numbers computes it: in each column, in each figure."""
    found, smoke = item(name), tier("smoke")
    shown = [(cell.column, ask) for cell in found.cells if found.kind == "table" for ask in cell.asks]
    shown += [("", ask) for ask in found.series(smoke).values()]
    fusions = {}
    for column, ask in shown:
        head = ask.recipe(smoke, 0).method.head
        if isinstance(head, Balanced):
            fusions.setdefault((column, ask.place), set()).add(head.fusion)
    assert all(both == {"probs", "logits"} for both in fusions.values()), fusions
    assert fusions or name in ("beta", "alpha-confidence")


def test_what_the_paper_s_own_numbers_say_about_a_temperature():
    """The sentence in docs/paper.md: it is not below vanilla with a temperature."""
    rows = list(VARIANTS.values())
    scaled, ours = (row[1::2] for row in (rows[0], rows[-1]))
    assert sum(number.second for number in scaled) / 3 == pytest.approx(1.65, abs=0.005)
    assert sum(number.value for number in ours) / 3 == pytest.approx(1.74, abs=0.005)


def test_an_unknown_item_is_named():
    with pytest.raises(BalcalError, match="did you mean `gamma`"):
        item("gama")
