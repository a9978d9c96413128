"""The two figures of a sweep as PNG: TTFT against prompt length, and prefill split into its parts."""

from __future__ import annotations

import io
import itertools
import unicodedata
from typing import TYPE_CHECKING, Any

from toolkit.report.results import PointResult, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (9.0, 5.6)  # inches
DPI = 150
FONT = "DejaVu Sans"  # comes with matplotlib
TITLE_WIDTH = 100  # characters of a title's line
# Okabe and Ito's palette, told apart by colour-blind readers; hatches and markers say the same again.
OFF, ON, TRANSFER, MARK = "#D55E00", "#0072B2", "#E69F00", "#B00020"
# Closer than this share of the axis, labels of neighbours touch: a log axis spreads them.
CROWDED = 0.07
# With more points a label of both parts is wider than its bar.
WIDE_BARS = 4


def ttft_png(results: Results) -> bytes:
    """TTFT over turns from the second on, a line for each leg."""
    figure, axes = _canvas(results, "Time to first token, mean of turns from the second on")
    points = [p for p in results.points if p.off.ttft_ms or p.on.ttft_ms]
    # Over a line that rises to the right there is room on the left.
    _ttft_line(axes, points, "off", "OFF: prefill recomputes", OFF, "o", (3, 8), "right")
    _ttft_line(axes, points, "on", "ON: prefill reads back decode's KV", ON, "s", (0, -16), "center")
    lengths = [p.prompt_length for p in points]
    span = max(lengths, default=1) - min(lengths, default=0)
    if any(b - a < CROWDED * span for a, b in itertools.pairwise(lengths)):
        axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [_tokens(length) for length in lengths])
    axes.minorticks_off()
    axes.margins(x=0.08)
    axes.set_xlabel("prompt tokens of a conversation's last turn")
    axes.set_ylabel("TTFT (ms)")
    top = axes.get_ylim()[1] * 1.12
    lowest = min((s.mean for p in points for s in (p.off.ttft_ms, p.on.ttft_ms) if s), default=top)
    # Room under the lowest point's label, so that it does not cover the axis.
    axes.set_ylim(bottom=0 if lowest > 0.09 * top else -0.06 * top, top=top)
    return _png(figure, axes)


def prefill_png(results: Results) -> bytes:
    """Prefill time over turns from the second on: OFF beside ON, ON split into compute and transfer."""
    figure, axes = _canvas(results, "Prefill duration, mean of turns from the second on")
    width = 0.36
    for x, point in enumerate(results.points):
        if point.off.prefill_ms:
            _bar(axes, x - width / 2 - 0.02, 0, point.off.prefill_ms.mean, width, OFF, "")
        if point.on.prefill_ms:
            _on_bar(axes, x + width / 2 + 0.02, point, width)
    _label_stacks(axes, results, width)
    axes.set_xticks(range(len(results.points)), [_tokens(p.prompt_length) for p in results.points])
    axes.set_xlim(-0.6, len(results.points) - 0.4)
    axes.set_xlabel("prompt tokens of a conversation's last turn      (over ON: total, compute + transfer)")
    axes.set_ylabel("prefill (ms)")
    for label, colour, hatch in (
        ("OFF: compute", OFF, ""),
        ("ON: compute", ON, ""),
        ("ON: KV transfer D→P", TRANSFER, "///"),
    ):
        axes.bar([0], [0], color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=label)
    axes.set_ylim(0, (axes.get_ylim()[1] or 1) * 1.1)
    return _png(figure, axes)


def _canvas(results: Results, what: str) -> tuple[Figure, Axes]:
    # Agg by object, not by pyplot: no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines = [what, _title_line(f"{results.settings['model']['name']} — {results.ran_on['summary']}")]
    if results.ran_on["hardware"]:
        lines.append(_title_line(f"each engine on {results.ran_on['hardware']}"))
    axes.set_title("\n".join(lines), fontsize=10.5, loc="left", family=FONT, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    if not results.valid:
        _mark_invalid(figure, axes, len(results.reasons))
    return figure, axes


def _title_line(text: str) -> str:
    """One line that fits and that the font can draw: a box for each character it lacks; the page beside
    the picture has the text whole."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont(FONT)).get_charmap()
    line = "".join(
        letter if ord(letter) in known else "□"
        for letter in unicodedata.normalize("NFC", " ".join(text.split()))
    )
    return line if len(line) <= TITLE_WIDTH else line[: TITLE_WIDTH - 1] + "…"


def _mark_invalid(figure: Figure, axes: Axes, reasons: int) -> None:
    figure.suptitle(
        f"INVALID: {reasons} reason{'s' if reasons != 1 else ''}, see the report",
        color=MARK,
        weight="bold",
    )
    axes.text(
        0.5, 0.5, "INVALID", transform=axes.transAxes, ha="center", va="center", rotation=25,
        fontsize=80, color=MARK, alpha=0.14, weight="bold", zorder=5,
    )  # fmt: skip


def _ttft_line(
    axes: Axes,
    points: list[PointResult],
    leg: str,
    label: str,
    colour: str,
    marker: str,
    lift: tuple[int, int],
    side: str,
) -> None:
    known = [(p.prompt_length, s.mean) for p in points if (s := getattr(p, leg).ttft_ms)]
    axes.plot(*_columns(known), marker=marker, color=colour, label=label, linewidth=2, markersize=6)
    for x, y in known:
        axes.annotate(
            _ms(y), (x, y), xytext=lift, textcoords="offset points", ha=side, fontsize=9,
            color=colour, weight="bold",
        )  # fmt: skip


def _columns(pairs: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _on_bar(axes: Axes, x: float, point: PointResult, width: float) -> None:
    assert point.on.prefill_ms is not None
    if point.kv_transfer is None or point.on_compute_ms is None or point.on_compute_ms < 0:
        _bar(axes, x, 0, point.on.prefill_ms.mean, width, ON, "")
        return
    _bar(axes, x, 0, point.on_compute_ms, width, ON, "")
    _bar(axes, x, point.on_compute_ms, point.kv_transfer.ms, width, TRANSFER, "///")


def _bar(axes: Axes, x: float, bottom: float, height: float, width: float, colour: str, hatch: str) -> None:
    axes.bar([x], [height], width, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6)


def _label_stacks(axes: Axes, results: Results, width: float) -> None:
    """The whole above each bar; the parts of ON inside it where they are tall enough to read, else with
    the whole, one below the other where bars are narrow."""
    narrow = len(results.points) > WIDE_BARS
    size = min(8.5, 52 / len(results.points))
    tall = axes.get_ylim()[1] * 0.055
    for x, point in enumerate(results.points):
        if point.off.prefill_ms:
            _whole(
                axes, x - width / 2 - 0.02, point.off.prefill_ms.mean, _ms(point.off.prefill_ms.mean), size
            )
        if not point.on.prefill_ms:
            continue
        right, whole, text = x + width / 2 + 0.02, point.on.prefill_ms.mean, _ms(point.on.prefill_ms.mean)
        if point.kv_transfer and point.on_compute_ms is not None and point.on_compute_ms >= 0:
            parts = (
                (0.0, point.on_compute_ms, "white"),
                (point.on_compute_ms, point.kv_transfer.ms, "black"),
            )
            if all(height >= tall for _, height, _ in parts):
                labels = (_rest(whole, point.kv_transfer.ms), _ms(point.kv_transfer.ms))
                for (bottom, height, ink), label in zip(parts, labels, strict=True):
                    _inside(axes, right, bottom + height / 2, label, ink, size)
            else:
                compute, transfer = _rest(whole, point.kv_transfer.ms), _ms(point.kv_transfer.ms)
                text += f"\n={compute}\n+{transfer}" if narrow else f"\n({compute}+{transfer})"
        _whole(axes, right, whole, text, size)


def _whole(axes: Axes, x: float, y: float, text: str, size: float) -> None:
    axes.annotate(
        text, (x, y), xytext=(0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=size,
        weight="bold",
    )  # fmt: skip


def _inside(axes: Axes, x: float, y: float, text: str, ink: str, size: float) -> None:
    box = {"facecolor": TRANSFER, "edgecolor": "none", "pad": 1.0} if ink == "black" else None
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=ink, bbox=box)


def _png(figure: Figure, axes: Axes) -> bytes:
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none")
    target = io.BytesIO()
    # No version or date inside: the same results give the same file.
    metadata: dict[str, Any] = {"Software": None}
    figure.savefig(target, format="png", metadata=metadata)
    return target.getvalue()


def _tokens(length: int) -> str:
    return f"{length / 1024:g}k" if length % 512 == 0 else f"{length:,}"


def _rest(whole: float, part: float) -> str:
    """`whole - part` as it must read beside their rounded labels, so that the figures add up."""
    return _ms(round(whole) - round(part)) if whole >= 10 and part >= 10 else _ms(whole - part)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
