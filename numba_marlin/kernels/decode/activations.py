"""Rows of x for a consumer warp of ``decode``: shared memory to B fragments of the transposed
product.

``x_verbs(lang, config)`` -> namespace of device functions; x: ``registers.x``, two words for a k16
row and an n8 block, which ``widen`` leaves as its fragment, from x[start] on:

``fetch_pair(x, start, address)``   of a pair; address: what the lane passes to ``ldmatrix``
``fetch_row(x, start, address)``    of a single k16 row
``widen(x, start)``                 of a k16 row, before it is multiplied

Of 16-bit numbers ``ldmatrix`` brings the fragment: k = 2t and 2t + 1, and the same with 8 more. Of
e4m3 (``kernels.w4a8``), whose k is permuted within 16 (``layout.w4a8``), it brings one word: the
two lower bytes are the former, the upper ones the latter. Widened to float16 they are exact. The
assembler takes the upper bytes where they are (F2FP, with ``.H1``), so that is two instructions for
each k16 row and n8 block, however many columns they are multiplied by.
"""


def x_verbs(lang, config):
    return {1: _e4m3_verbs, 2: _plain_verbs}[config.x_element_bytes](lang)


def _plain_verbs(lang):
    ptx = lang.ptx

    @lang.device
    def fetch_pair(x, start, address):
        d = ptx.ldmatrix_x4(address)
        for r in range(4):
            x[start + r] = d[r]

    @lang.device
    def fetch_row(x, start, address):
        d = ptx.ldmatrix_x2(address)
        for r in range(2):
            x[start + r] = d[r]

    @lang.device
    def widen(x, start):
        pass

    return lang.namespace("x", fetch_pair=fetch_pair, fetch_row=fetch_row, widen=widen)


def _e4m3_verbs(lang):
    ptx, uint32 = lang.ptx, lang.uint32

    @lang.device
    def fetch_pair(x, start, address):
        d = ptx.ldmatrix_x2(address)
        for row in range(2):
            x[start + 2 * row] = d[row]

    @lang.device
    def fetch_row(x, start, address):
        x[start] = uint32(ptx.ldmatrix_x1(address))

    @lang.device
    def widen(x, start):
        d = ptx.cvt_rn_f16x2_e4m3x4(x[start])
        for r in range(2):
            x[start + r] = d[r]

    return lang.namespace("e4m3", fetch_pair=fetch_pair, fetch_row=fetch_row, widen=widen)
