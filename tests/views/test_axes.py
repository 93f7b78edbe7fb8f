"""Contract under test: what stands at an axis is inside the figure."""

import re

from numba_marlin.views import Lane, Span, Timeline, svg


def test_a_label_at_the_end_of_a_timelines_axis_is_not_cut_off():
    document = svg.timeline(Timeline((Lane("bytes", (Span(0, 50_000, "all"),)),), "bytes"), {})
    label = r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle" class="axis">(.+?)<'
    found = re.findall(label, document)
    assert found[-1][1] == "50,000"
    assert all(float(x) + len(said) * svg.LETTER / 2 <= svg.WIDTH + 0.1 for x, said in found)
