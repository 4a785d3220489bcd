"""One look for every figure: readable on light and dark pages, small in the notebook."""

from __future__ import annotations

from typing import Any

INK = "#808890"  # text and axes: enough contrast on white and on near-black
COLORS = {
    "ours": "#2a9d8f",
    "cublas": "#8d99ae",
    "load": "#3a86ff",
    "mma": "#2a9d8f",
    "epilogue": "#f4a261",
    "store": "#e76f51",
    "activation": "#8e5bd0",
    "wait": "#b0b7c0",
    "order": "#8d6e63",
    "bad": "#d62839",
    "floor": "#b5179e",
}
CYCLE = ["#2a9d8f", "#3a86ff", "#f4a261", "#e76f51", "#b5179e", "#8d99ae"]


def apply() -> None:
    """Set matplotlib's defaults for this session."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(
        {
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "savefig.transparent": True,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "axes.titlecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "grid.color": INK,
            "grid.alpha": 0.25,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=CYCLE),
            "legend.frameon": False,
            "font.size": 9,
            "figure.dpi": 90,
            "figure.constrained_layout.use": True,
        }
    )


def recorded_label(record: dict[str, Any]) -> str:
    """ "recorded on NVIDIA H200, 2026-11-30": what stands over every figure that was not measured here and now."""
    stamp = record["stamp"]
    return f"recorded on {stamp['gpu']}, {stamp['date']}"
