"""The drawings in `docs/images/`: `drawings.py` writes them, and a test compares them."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PAGE, STATE, GONE, PLAIN = "#cfe3fa", "#fbd7b5", "#f2f2f2", "#ffffff"
INK, ARROW = "#222222", "#4051b5"
_FONT = "font-family='system-ui, sans-serif' font-size='14'"


class Drawing:
    """Boxes, words and arrows, in pixels from the upper left."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._parts = [f"<title>{escape(title)}</title>"]

    def box(
        self, x: int, y: int, width: int, height: int, text: str = "", fill: str = PLAIN
    ) -> None:
        """A rectangle with lines of text in its middle."""
        dashes = " stroke-dasharray='4 3'" if fill == GONE else ""
        self._parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='4' fill='{fill}' "
            f"stroke='{INK}'{dashes}/>"
        )
        lines = text.split("\n")
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for at, line in enumerate(lines):
            self.words(x + width / 2, top + 18 * at, line, "middle")

    def words(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """One line."""
        self._parts.append(
            f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' fill='{INK}' {_FONT}>"
            f"{escape(text)}</text>"
        )

    def arrow(self, x1: int, y1: int, x2: int, y2: int, text: str = "", above: bool = True) -> None:
        """A line with a head at its end and a word beside its middle."""
        self._parts.append(
            f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{ARROW}' stroke-width='2' "
            "marker-end='url(#head)'/>"
        )
        if text and x1 == x2:
            self.words(x1 + 8, (y1 + y2) / 2 + 5, text)
        elif text:
            self.words((x1 + x2) / 2, (y1 + y2) / 2 + (-7 if above else 18), text, "middle")

    def text(self) -> str:
        """The file."""
        width, height = self._size
        return "\n".join(
            [
                f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>",
                "<defs><marker id='head' markerWidth='8' markerHeight='8' refX='7' refY='4' "
                f"orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='{ARROW}'/></marker></defs>",
                f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
                *self._parts,
                "</svg>\n",
            ]
        )


def resume() -> Drawing:
    """What a prompt of four blocks leaves, and what resuming after three needs."""
    it = Drawing(720, 250, "What resuming a prompt after three blocks needs")
    it.words(20, 66, "attention")
    it.words(20, 136, "recurrent")
    for block in range(4):
        x = 120 + 145 * block
        it.words(x + 145, 26, "N" if block == 0 else f"{block + 1}N", "middle")
        it.box(x, 40, 135, 42, f"page {block}", PAGE if block < 3 else GONE)
        kept = block == 2
        it.box(x + 85, 110, 50, 42, f"C{block}", STATE if kept else GONE)
    it.words(120, 26, "0", "middle")
    it.arrow(545, 200, 545, 158)
    it.words(700, 222, "resume here: all pages before, and this checkpoint", "end")
    it.words(120, 180, "dashed: not needed, or not kept")
    return it


def restore() -> Drawing:
    """What a second visit costs an engine alone, and one with hybrid-pages."""
    it = Drawing(720, 280, "A second visit, with and without hybrid-pages")
    rows = (
        (20, ("first visit",), "instructions, history: computed", "question 1"),
        (126, ("second visit,", "vLLM alone"), "computed again", "question 2"),
        (190, ("second visit,", "hybrid-pages"), None, "question 2"),
    )
    for y, name, before, after in rows:
        for line, words in enumerate(name):
            it.words(20, y + 27 - 9 * (len(name) - 1) + 18 * line, words)
        if before:
            it.box(150, y, 390, 42, before, PLAIN)
        it.box(550, y, 150, 42, after, PLAIN)
    it.box(150, 190, 350, 42, "pages from host memory", PAGE)
    it.box(510, 190, 30, 42, "C", STATE)
    it.words(150, 94, "... other requests fill the engine's own cache ...")
    it.words(150, 260, "C: the checkpoint of the recurrent states, from host memory, too")
    return it


def anywhere() -> Drawing:
    """Where the next turn of a conversation resumes: at a boundary, or at the last token."""
    it = Drawing(760, 344, "Where the fourth turn of a conversation resumes")
    size, ends, end = 784, (0, 520, 1130, 1940), 2090

    def at(tokens: int) -> int:
        return 150 + round(0.2 * tokens)

    def part(y: int, first: int, last: int, text: str, fill: str = PLAIN) -> None:
        it.box(at(first), y, at(last) - at(first), 42, text, fill)

    it.words(20, 63, "blocks")
    it.words(150, 26, "0", "middle")
    for block in range(3):
        it.words(at(size * (block + 1)), 26, f"{size * (block + 1):,}", "middle")
        part(36, size * block, size * (block + 1), "one block", GONE)
    it.words(20, 129, "conversation")
    for turn in range(1, 4):
        part(102, ends[turn - 1], ends[turn], f"turn {turn}")
    part(102, ends[-1], end, "4")
    for y, who, resumed in (
        (168, "whole blocks", 2 * size),
        (234, "hybrid-pages", ends[-1]),
    ):
        it.words(20, y + 18, "turn 4, with")
        it.words(20, y + 36, who)
        state = resumed - 130
        for block in range(3):
            if size * block < state:
                part(y, size * block, min(size * (block + 1), state), "page", PAGE)
        part(y, state, resumed, "C", STATE)
        if resumed < ends[-1]:
            part(y, resumed, ends[-1], "again")
        part(y, ends[-1], end, "4")
        it.words(636, y + 18, f"computes {end - resumed}")
        it.words(636, y + 36, "tokens")
    it.words(150, 304, "C: the checkpoint, the recurrent states after exactly these tokens")
    it.words(150, 326, "With whole blocks, turn 2 restored nothing: turn 1 fills none.")
    return it


def tiers() -> Drawing:
    """Where pages and checkpoints are kept, and who moves them."""
    it = Drawing(720, 330, "Tiers from the engine to a shared store")
    it.box(20, 20, 320, 64, "vLLM: blocks of the KV cache\nGPU or CPU memory", PAGE)
    it.box(20, 130, 320, 64, "arena: slots in host memory\nhost_gb", STATE)
    it.box(20, 244, 150, 64, "disk\ndisk_path", PLAIN)
    it.box(190, 244, 150, 64, "shared store\nremote_url", PLAIN)
    it.arrow(110, 84, 110, 128, "store")
    it.arrow(250, 128, 250, 86, "load")
    it.arrow(60, 194, 60, 242, "write")
    it.arrow(130, 242, 130, 196, "read")
    it.arrow(230, 194, 230, 242, "write")
    it.arrow(300, 242, 300, 196, "read")
    it.box(400, 20, 300, 64, "core in Rust\nindex, policy, leases, tiers", PLAIN)
    it.box(400, 130, 300, 64, "scheduler half\nlooks up, plans, publishes", PLAIN)
    it.box(400, 244, 300, 64, "worker half, one per rank\ncopies", PLAIN)
    it.arrow(450, 128, 450, 86, "asks")
    it.arrow(570, 84, 570, 128, "what is where")
    it.arrow(450, 194, 450, 242, "plan")
    it.arrow(570, 242, 570, 196, "checksums")
    return it


def fork() -> Drawing:
    """Why a fork costs one visit."""
    it = Drawing(720, 265, "A fork gets its checkpoint at the second visit")
    rows = (
        ("1st prompt", "question A", (600,), "computed; a checkpoint near its end"),
        ("2nd prompt", "question B", (310, 600), "computed; the fork is seen, and kept"),
        ("3rd prompt", "question C", (600,), "resumes at the fork"),
    )
    for at, (name, own, states, says) in enumerate(rows):
        y = 20 + 84 * at
        it.words(20, y + 27, name)
        it.box(120, y, 190, 42, "system prompt", PAGE if at == 2 else PLAIN)
        it.box(310, y, 290, 42, own, PLAIN)
        for x in states:
            it.box(x - 11, y + 10, 22, 22, "C", STATE)
        it.words(120, y + 62, says)
    return it


def life() -> Drawing:
    """From a request's arrival to its entries."""
    it = Drawing(720, 210, "From a request to entries that others can hit")
    steps = ("look up", "load", "compute", "store", "publish")
    notes = (
        "deepest boundary\nwith a state and\nall its pages",
        "all ranks, all\nlayers; a failure\nis recomputed",
        "what is left of\nthe prompt, and\nthe answer",
        "finished blocks\nand states, in the\nbackground",
        "once all ranks\nhave reported all\ntheir bytes",
    )
    for at, (step, note) in enumerate(zip(steps, notes, strict=True)):
        x = 16 + 141 * at
        it.box(x, 30, 118, 48, step, STATE if step == "publish" else PAGE)
        for line, text in enumerate(note.split("\n")):
            it.words(x + 59, 108 + 18 * line, text, "middle")
        if at:
            it.arrow(x - 23, 54, x - 2, 54)
    it.words(16, 190, "What fails on the way is a miss, counted by its reason: never a wrong byte.")
    return it


DRAWINGS = {
    "anywhere": anywhere,
    "restore": restore,
    "resume": resume,
    "tiers": tiers,
    "fork": fork,
    "life": life,
}


def main() -> None:
    """Writes all of them."""
    IMAGES.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw().text())


if __name__ == "__main__":
    main()
