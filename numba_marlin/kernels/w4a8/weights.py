"""Weights of a stage: words, scales and zero points to registers, words to bytes.

``weight_verbs(lang, config)`` -> namespace: ``load_of(row, count)`` makes a device function
(stage, thread) -> Loaded; ``dequantise`` is one of (words of a k16 row, of the next, zero points)
-> fragments. All of a thread's are tuples with an element per strip.
"""

from numba_marlin.kernels.w4a8.elements import element_verbs
from numba_marlin.layout.w4a8 import EVEN_BYTES, ODD_BYTES


def weight_verbs(lang, config):
    ptx, cfg, strips = lang.ptx, lang.constants(config), config.strips
    elements = element_verbs(lang, config)
    even, odd = ptx.prmt_b32(selector=EVEN_BYTES), ptx.prmt_b32(selector=ODD_BYTES)

    # of a scale group, or of a stage: words of its k16 rows, one row behind the other; scales and
    # zero points of each strip
    Loaded = lang.record("Loaded", "words scales points")
    # a word of type uint32
    Register = lang.record("Register", "word")

    # ---- words

    @lang.device
    def one_word(address):
        return (ptx.ld_shared_b32(address),)

    words_at = {1: one_word, 2: ptx.ld_shared_v2_b32, 4: ptx.ld_shared_v4_b32}[strips]

    @lang.device
    def own_words(thread):
        """Where in a stage a lane's words of k16 row 0 begin: a word of each of its strips."""
        panel = thread.panel * cfg.panel_bytes
        if cfg.w_boxes > 1:  # a gate's columns and an up's (``experts.w4a8``)
            box, of_box = thread.panel // cfg.w_panels, thread.panel % cfg.w_panels
            panel = box * cfg.w_box_bytes + of_box * cfg.panel_bytes
        return cfg.weights_at + panel + thread.lane * cfg.lane_bytes + thread.first_strip * 4

    def words_from(row, count):
        """-> device function (where in a stage a lane's words begin) -> its words of k16 rows
        ``row`` and ``count - 1`` more."""

        @lang.device
        def one(address):
            return words_at(address + row * cfg.w_row_bytes)

        if count == 1:
            return one
        rest = words_from(row + 1, count - 1)

        @lang.device
        def more(address):
            return one(address) + rest(address)

        return more

    # ---- scales and zero points

    @lang.device
    def no_word(stage, row, thread):
        return Register(0).word

    @lang.device
    def load_scales(stage, row, thread):
        """Pairs of scales, of columns g and g + 8 of each strip, in the order of group scales: 128
        bytes per panel."""
        own = thread.panel * 128 + thread.lane // 4 * 16 + thread.first_strip * 4
        return words_at(stage + cfg.scales_at + own + row * cfg.s_row_bytes)

    @lang.device
    def load_points(stage, row, thread):
        """The word with the eight zero points of g in a panel: strip j's are nibbles j and j + 4;
        shifted, so that the warp's first strip is strip 0."""
        row_at = stage + (cfg.zeros_at + row * cfg.z_row_bytes)
        word = ptx.ld_shared_b32(row_at + thread.panel * 32 + thread.lane // 4 * 4)
        return word >> (4 * thread.first_strip)

    scales_of = load_scales if config.grouped else no_word
    points_of = load_points if config.zeros is not None else no_word

    def load_of(row, count):
        """-> device function (stage, thread) -> Loaded: of scale row ``row`` of a stage, whose
        products are ``count``."""
        words_of = words_from(2 * row * count, 2 * count)

        @lang.device
        def load(stage, thread):
            return Loaded(
                words_of(stage + own_words(thread)),
                scales_of(stage, row, thread),
                points_of(stage, row, thread),
            )

        return load

    # ---- bytes

    @lang.device
    def columns_of(word, zeros):
        """-> registers of columns g and g + 8: the four weights that a word has of each."""
        lower, upper = elements.bytes_of(word, zeros)
        return even(lower, upper), odd(lower, upper)

    def dequantise_from(count, strip=0):
        """-> device function (words of a k16 row, of the next, zero points) -> fragments."""

        @lang.device
        def one(first, second, points):
            zeros = elements.zeros_of(points >> (4 * strip))
            d0, d1 = columns_of(first[0], zeros)
            d2, d3 = columns_of(second[0], zeros)
            return ((d0, d1, d2, d3),)

        if count == 1:
            return one
        rest = dequantise_from(count - 1, strip + 1)

        @lang.device
        def more(first, second, points):
            return one(first[:1], second[:1], points) + rest(first[1:], second[1:], points)

        return more

    return lang.namespace("weights", load_of=load_of, dequantise=dequantise_from(strips))
