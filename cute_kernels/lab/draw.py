"""Pictures of layouts, thread-value maps, swizzles, banks, TMA boxes, timelines and rooflines, from plain numbers.

Every function returns a matplotlib Figure. The numbers come from CuTe (a layout evaluated at coordinates) or from a
record; what is computed on the way (`swizzle_bytes`, `bank_conflicts`) is a function of its own, so that it can be tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from . import style

BANKS = 32  # of 4 bytes each
CHUNK = 16  # bytes: the unit that a swizzle moves


def swizzle_bytes(offset: Any, span: int = 128) -> Any:
    """Byte offset -> byte offset under the hardware's swizzle of `span` bytes (128, 64, 32; 16: none).

    Address bits 4.. are XORed with bits 7..: three of them for 128 bytes, two for 64, one for 32. Works on numpy arrays.
    """
    bits = {128: 3, 64: 2, 32: 1, 16: 0}[span]
    return offset ^ ((offset >> 7 & (1 << bits) - 1) << 4)


def bank_conflicts(addresses: Sequence[int], width: int = CHUNK) -> int:
    """How many passes one phase takes when its threads access `width` bytes at these addresses: 1 is free of conflicts."""
    return max(words_by_bank(addresses, width))


def words_by_bank(addresses: Sequence[int], width: int = CHUNK) -> list[int]:
    """How many different words of each bank are touched; threads that share a word share the access."""
    words: list[set[int]] = [set() for _ in range(BANKS)]
    for address in addresses:
        for word in range(address // 4, -(-(address + width) // 4)):
            words[word % BANKS].add(word)
    return [len(found) for found in words]


def evaluate(layout: Callable[[tuple[int, int]], int], rows: int, columns: int) -> np.ndarray:
    """A function of (row, column) as an array of offsets."""
    return np.array([[int(layout((r, c))) for c in range(columns)] for r in range(rows)])


def _done(figure: Any) -> Any:
    """Take the figure out of pyplot's hands: the notebook shows what a cell returns, once."""
    plt.close(figure)
    return figure


def _grid(axis: Any, values: np.ndarray, colours: np.ndarray, text: Callable[[int, int], str], fontsize: float) -> None:
    """Cells in opaque pastels with dark text: they look the same on a light and on a dark page."""
    rows, columns = values.shape
    many = int(colours.max()) + 1
    if many <= 60:
        palette = [colour for name in ("tab20", "tab20b", "tab20c") for colour in plt.get_cmap(name).colors]
    else:
        palette = plt.get_cmap("viridis")(np.linspace(0, 1, many))
    for r in range(rows):
        for c in range(columns):
            pastel = 0.5 + 0.5 * np.array(palette[int(colours[r, c])][:3])
            axis.add_patch(Rectangle((c, r), 1, 1, facecolor=pastel, edgecolor="white", lw=0.6))
            label = text(r, c)
            if label:
                axis.text(c + 0.5, r + 0.5, label, ha="center", va="center", fontsize=fontsize, color="#222222")
    axis.set(xlim=(0, columns), ylim=(rows, 0))
    axis.set_aspect("equal")
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.tick_params(length=0)


def layout(offsets: np.ndarray, title: str = "", colour: np.ndarray | None = None):
    """Offsets (rows, columns) as a grid of numbers; cells of equal `colour` (default: offset // 8) look alike."""
    style.apply()
    offsets = np.asarray(offsets)
    rows, columns = offsets.shape
    figure, axis = plt.subplots(figsize=(min(11, 0.42 * columns + 0.8), min(9, 0.42 * rows + 0.8)))
    colour = offsets // 8 if colour is None else np.asarray(colour)
    _grid(axis, offsets, colour % 20, lambda r, c: str(offsets[r, c]), fontsize=7)
    axis.set_xticks(np.arange(columns) + 0.5, range(columns), fontsize=6)
    axis.set_yticks(np.arange(rows) + 0.5, range(rows), fontsize=6)
    axis.set_title(title)
    return _done(figure)


def tv_map(coordinates: np.ndarray, rows: int, columns: int, title: str = "", threads: int | None = None):
    """(thread, value, 2) -> who holds each element of a rows x columns tile: 'thread:value', one colour a thread.

    threads: colour only the first so many; the others stay empty. Elements beyond the tile are left out.
    """
    style.apply()
    owner = np.full((rows, columns), -1)
    value = np.full((rows, columns), -1)
    coordinates = np.asarray(coordinates)
    for t in range(coordinates.shape[0] if threads is None else threads):
        for v, (m, n) in enumerate(coordinates[t]):
            if m < rows and n < columns:
                owner[m, n], value[m, n] = t, v
    figure, axis = plt.subplots(figsize=(min(12, 0.5 * columns + 0.8), min(9, 0.36 * rows + 0.8)))
    _grid(
        axis,
        owner,
        np.maximum(owner, 0),
        lambda r, c: f"{owner[r, c]}:{value[r, c]}" if owner[r, c] >= 0 else "",
        6,
    )
    axis.set_aspect("auto")
    axis.set_xticks(np.arange(columns) + 0.5, range(columns), fontsize=6)
    axis.set_yticks(np.arange(rows) + 0.5, range(rows), fontsize=6)
    axis.set(title=title, xlabel="column", ylabel="row")
    return _done(figure)


def swizzle(span: int = 128, rows: int = 8, title: str = ""):
    """Where the 16-byte chunks of `rows` rows of `span` bytes land: logical chunk number at its physical place."""
    style.apply()
    per_row = span // CHUNK
    logical = np.arange(rows * per_row) * CHUNK
    physical = swizzle_bytes(logical, span)
    placed = np.empty(rows * per_row, int)
    placed[physical // CHUNK] = logical // CHUNK
    lines = placed.reshape(-1, 128 // CHUNK) if span < 128 else placed.reshape(rows, per_row)
    figure, axes = plt.subplots(1, 2, figsize=(9, 0.36 * len(lines) + 1))
    for axis, grid, name in (
        (axes[0], np.sort(placed).reshape(lines.shape), "as written"),
        (axes[1], lines, f"{span}-byte swizzle"),
    ):
        _grid(axis, grid, grid % per_row, lambda r, c, grid=grid: f"{grid[r, c] // per_row},{grid[r, c] % per_row}", 7)
        axis.set(title=name, xlabel="16-byte column of a 128-byte line (4 banks each)", ylabel="line")
    figure.suptitle(title or "row,chunk of each 16-byte unit", fontsize=9)
    return _done(figure)


def banks(phases: Mapping[str, Sequence[int]], width: int = CHUNK, title: str = ""):
    """Banks that one phase of a shared-memory access touches, one strip a phase: name -> byte addresses of its threads."""
    style.apply()
    figure, axes = plt.subplots(len(phases), 1, figsize=(9, 0.9 * len(phases) + 0.5), squeeze=False)
    for axis, (name, addresses) in zip(axes[:, 0], phases.items(), strict=True):
        hits = words_by_bank(addresses, width)
        axis.bar(range(BANKS), hits, color=[style.COLORS["bad"] if h > 1 else style.COLORS["ours"] for h in hits])
        passes = max(hits)
        axis.set_title(f"{name}: {passes} pass{'es' if passes > 1 else ''}", fontsize=8)
        axis.set(xticks=range(0, BANKS, 4), yticks=[0, max(1, passes)], ylabel="words")
    axes[-1, 0].set_xlabel("bank")
    figure.suptitle(title, fontsize=9)
    return _done(figure)


def tma_box(shape: tuple[int, int], box: tuple[int, int], origins: Sequence[tuple[int, int]], title: str = ""):
    """A (rows, columns) tensor and the boxes that TMA loads from it; what lies outside arrives as zeros (hatched)."""
    style.apply()
    rows, columns = shape
    figure, axis = plt.subplots(figsize=(5, 4))
    for i, (r, c) in enumerate(origins):
        axis.add_patch(
            Rectangle(
                (c, r), box[1], box[0], facecolor=style.CYCLE[i % len(style.CYCLE)], alpha=0.3, edgecolor=style.INK
            )
        )
        inside_r, inside_c = min(rows, r + box[0]), min(columns, c + box[1])
        if r + box[0] > rows:
            axis.add_patch(
                Rectangle(
                    (c, inside_r),
                    box[1],
                    r + box[0] - inside_r,
                    fill=False,
                    hatch="//",
                    edgecolor=style.COLORS["bad"],
                    lw=0,
                )
            )
        if c + box[1] > columns:
            axis.add_patch(
                Rectangle(
                    (inside_c, r),
                    c + box[1] - inside_c,
                    box[0],
                    fill=False,
                    hatch="//",
                    edgecolor=style.COLORS["bad"],
                    lw=0,
                )
            )
        axis.text(c + box[1] / 2, r + box[0] / 2, f"({r}, {c})", ha="center", va="center", fontsize=7)
    axis.add_patch(Rectangle((0, 0), columns, rows, fill=False, edgecolor=style.COLORS["ours"], lw=2))
    high = max([rows, *(r + box[0] for r, _ in origins)])
    wide = max([columns, *(c + box[1] for _, c in origins)])
    axis.set(xlim=(-2, wide * 1.03), ylim=(high * 1.03, -2), xlabel="column", ylabel="row", title=title)
    return _done(figure)


def timeline(
    rows: Mapping[str, Sequence[tuple[float, float, str, str]]],
    title: str = "",
    unit: str = "cycles (model)",
    span: tuple[float, float] | None = None,
):
    """Who does what when: role -> bars of (start, end, label, kind); kind is a key of style.COLORS, such as mma.

    span: what the axis shows, default: all bars."""
    style.apply()
    figure, axis = plt.subplots(figsize=(10, 0.5 * len(rows) + 1.1))
    kinds = []
    for y, bars in enumerate(rows.values()):
        for start, end, label, kind in bars:
            axis.barh(
                y,
                end - start,
                left=start,
                height=0.62,
                color=style.COLORS[kind],
                edgecolor=style.INK,
                lw=0.5,
                alpha=0.35 if kind == "wait" else 0.9,
            )
            if label:
                axis.text(
                    (start + end) / 2,
                    y,
                    label,
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if kind != "wait" else style.INK,
                )
            if kind not in kinds:
                kinds.append(kind)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.set(xlabel=unit, title=title)
    if span:
        axis.set_xlim(span)
    handles = [Rectangle((0, 0), 1, 1, color=style.COLORS[k]) for k in kinds]
    figure.legend(handles, kinds, ncols=len(kinds), fontsize=7, loc="outside lower left")
    return _done(figure)


def roofline(points: Mapping[str, tuple[float, float]], peak_tflops: float, bandwidth_tbs: float, title: str = ""):
    """Points name -> (FLOP per byte, TFLOP/s) under the two ceilings of a GPU; numbered, those that fall together with all
    their numbers at one place."""
    style.apply()
    figure, axis = plt.subplots(figsize=(8.5, 4))
    ridge = peak_tflops / bandwidth_tbs
    low = min([ridge / 100, *(x for x, _ in points.values())])
    high = max([ridge * 20, *(x for x, _ in points.values())])
    xs = np.geomspace(low, high, 200)
    axis.plot(xs, np.minimum(peak_tflops, xs * bandwidth_tbs), color=style.INK, lw=1.5)
    together: list[tuple[float, float, list[str]]] = []
    for i, (name, (x, y)) in enumerate(points.items()):
        axis.plot(x, y, "o", color=style.CYCLE[i % len(style.CYCLE)], ms=5, label=f"{i + 1}  {name}")
        near = [names for a, b, names in together if max(x / a, a / x, y / b, b / y) < 1.25]
        if near:
            near[0].append(str(i + 1))
        else:
            together.append((x, y, [str(i + 1)]))
    for x, y, names in together:
        axis.annotate(", ".join(names), (x, y), textcoords="offset points", xytext=(4, -10), fontsize=7)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axis.axvline(ridge, color=style.INK, lw=0.5, ls=":")
    axis.set(xscale="log", yscale="log", xlabel="FLOP per byte of DRAM traffic", ylabel="TFLOP/s", title=title)
    axis.text(ridge, axis.get_ylim()[0] * 1.15, f" ridge {ridge:.0f} FLOP/B", fontsize=7)
    return _done(figure)


def grouped_bars(values: Mapping[str, Mapping[str, float]], ylabel: str, title: str = ""):
    """group -> series -> value, side by side; numbers on the bars."""
    style.apply()
    groups = list(values)
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    figure, axis = plt.subplots(figsize=(max(5, 1.2 * len(groups) * math.sqrt(len(series))), 3))
    width = 0.8 / len(series)
    for i, name in enumerate(series):
        heights = [values[g].get(name, float("nan")) for g in groups]
        bars = axis.bar(np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width, heights, width * 0.92, label=name)
        axis.bar_label(bars, fmt="%.0f", fontsize=7, color=style.INK)
    axis.set_xticks(range(len(groups)), groups)
    axis.set(ylabel=ylabel, title=title)
    axis.legend(fontsize=7, ncols=len(series), loc="upper left", bbox_to_anchor=(0, -0.1))
    return _done(figure)


def tile_orders(orders: Mapping[int, Any], tiles: tuple[int, int], wave: int, title: str = ""):
    """How a scheduler walks a (rows, columns) grid of tiles: group -> (row, column) of each tile number, in turn.

    Colour is the tile's number (all panels have the same numbers), the tiles of the first wave are outlined."""
    style.apply()
    figure, axes = plt.subplots(1, len(orders), figsize=(1.9 * len(orders), 3.4), sharey=True)
    for axis, (group, walk) in zip(np.atleast_1d(axes), orders.items(), strict=True):
        number = np.zeros(tiles)
        for i, (m, n) in enumerate(walk.tolist()):
            number[m, n] = i
        image = axis.imshow(number, cmap="viridis", aspect="auto")
        for m, n in walk[:wave].tolist():
            axis.add_patch(Rectangle((n - 0.5, m - 0.5), 1, 1, fill=False, edgecolor=style.COLORS["store"], lw=0.7))
        axis.set(title=f"group {group}", xlabel="tile column")
        axis.spines[:].set_visible(False)
    np.atleast_1d(axes)[0].set_ylabel("tile row")
    figure.colorbar(image, ax=axes, label="number of the tile", aspect=30)
    figure.suptitle(title, fontsize=9)
    return _done(figure)


def flow(lanes: Mapping[str, Sequence[tuple[str, str]]], title: str = ""):
    """What follows what: lane -> boxes of (text, kind) from left to right, with arrows; kind is a key of style.COLORS."""
    style.apply()
    wide, high, gap = 1.9, 0.72, 0.34
    figure, axis = plt.subplots(figsize=(10, 0.95 * len(lanes) + 0.4))
    for row, (lane, boxes) in enumerate(lanes.items()):
        y = 1.45 * row
        axis.text(0, y - 0.56, lane, fontsize=8, va="center")
        for column, (text, kind) in enumerate(boxes):
            x = column * (wide + gap)
            axis.add_patch(Rectangle((x, y - high / 2), wide, high, facecolor=style.COLORS[kind], lw=0))
            axis.text(x + wide / 2, y, text, ha="center", va="center", fontsize=7, color="white")
            if column:
                axis.annotate(
                    "",
                    (x, y),
                    (x - gap, y),
                    arrowprops={"arrowstyle": "->", "color": style.INK, "shrinkA": 0, "shrinkB": 0},
                )
    longest = max(len(boxes) for boxes in lanes.values())
    axis.set(xlim=(-0.05, longest * (wide + gap)), ylim=(1.45 * len(lanes) - 0.9, -0.8), title=title)
    axis.set_axis_off()
    return _done(figure)


def host_times(us: Mapping[str, float], base: str, title: str = ""):
    """Microseconds a call as bars, with the ratio to `base` beside each."""
    style.apply()
    figure, axis = plt.subplots(figsize=(8, 0.34 * len(us) + 0.9))
    colours = [style.COLORS["ours" if name.startswith(("ck.", "operator", "CUDA")) else "cublas"] for name in us]
    bars = axis.barh(range(len(us)), list(us.values()), color=colours, height=0.7)
    axis.bar_label(
        bars, [f"{v:.1f} us, {v / us[base]:.2f} x" for v in us.values()], padding=3, fontsize=7, color=style.INK
    )
    axis.set_yticks(range(len(us)), list(us))
    axis.invert_yaxis()
    axis.set(xlim=(0, 1.3 * max(us.values())), xlabel=f"host time of a call, us, and its ratio to {base}", title=title)
    return _done(figure)


def host_bound(panels: Mapping[str, tuple[Mapping[str, Mapping[int, float]], float]], title: str = ""):
    """Where the host is slower than the GPU: panel -> (model -> M -> GPU us, host us of a call, the dashed line)."""
    style.apply()
    figure, axes = plt.subplots(1, len(panels), figsize=(10, 3.4), sharey=True)
    for axis, (who, (models, host)) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        for number, (model, times) in enumerate(models.items()):
            colour = plt.get_cmap("viridis")(0.15 + 0.7 * number / max(1, len(models) - 1))
            axis.plot(list(times), list(times.values()), "o-", ms=3, lw=1, color=colour, label=model)
        axis.axhline(host, color=style.COLORS["bad"], ls="--", lw=1.2, label=f"host, {host:.1f} us")
        axis.set(xscale="log", yscale="log", xlabel="M, rows of x", title=who)
        axis.set_xticks(sorted({m for times in models.values() for m in times}))
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
        axis.tick_params(axis="x", labelsize=7)
    np.atleast_1d(axes)[0].set_ylabel("time of a call on the GPU, us")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles[:-1], labels[:-1], fontsize=7, loc="outside right upper")
    for axis, (_, host) in zip(np.atleast_1d(axes), panels.values(), strict=True):
        axis.text(
            axis.get_xlim()[1],
            host * 0.85,
            f"host {host:.1f} us",
            fontsize=7,
            color=style.COLORS["bad"],
            ha="right",
            va="top",
        )
    figure.suptitle(title, fontsize=9)
    return _done(figure)
