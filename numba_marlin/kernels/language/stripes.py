"""Stream-K's stripes as verbs: ``units`` (steps, or tiles) numbered through a launch, cut into one
contiguous stripe per block, equal to within a unit; the first blocks have the longer ones.

``stripe_verbs(lang)`` -> namespace of device functions that count in u32; ``blocks``: how many
blocks share the units. ``layout.stripes`` has the same as integers.
"""


def stripe_verbs(lang):
    @lang.device
    def start(block, units, blocks):
        """The unit that the stripe of a block begins with; that of block + 1 is where it ends."""
        return block * (units // blocks) + min(block, units % blocks)

    @lang.device
    def block_of(position, units, blocks):
        """The inverse: whose stripe has the unit at ``position``. There must be at most as many
        blocks as units, so that no share is 0."""
        share, longer = units // blocks, units % blocks
        of_longer = longer * (share + 1)
        if position < of_longer:
            return position // (share + 1)
        return longer + (position - of_longer) // share

    return lang.namespace("stripes", start=start, block_of=block_of)
