"""Prometheus' text format: names, labels, escaping."""

from __future__ import annotations

from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, object], float]


class Exposition:
    """Collects metrics and writes them down; every name begins with `commandbus_`."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, text: str, *samples: Sample) -> None:
        """A counter or gauge. Without samples nothing is written."""
        if samples:
            self._head(name, kind, text)
            for labels, value in samples:
                self._lines.append(f"commandbus_{name}{_labels(labels)} {value}")

    def histograms(
        self, name: str, text: str, bounds: tuple[float, ...], *series: HistogramSample
    ) -> None:
        """Histograms of one name; counts are per bucket, not cumulative, and one longer than bounds."""
        if not series:
            return
        self._head(name, "histogram", text)
        for labels, counts, total in series:
            running = 0
            for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
                running += count
                written = _labels({**labels, "le": bound})
                self._lines.append(f"commandbus_{name}_bucket{written} {running}")
            self._lines.append(f"commandbus_{name}_sum{_labels(labels)} {total}")
            self._lines.append(f"commandbus_{name}_count{_labels(labels)} {running}")

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP commandbus_{name} {text}", f"# TYPE commandbus_{name} {kind}"]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


HistogramSample = tuple[Mapping[str, object], list[int], float]


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
