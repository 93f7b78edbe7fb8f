"""What people draw when they explain this kernel, step by step, and the command that makes each
picture from a run.

Rows: (key of the screenshot, what is asked for, what is shown, options of ``numba-marlin trace``
besides DEMO's, section, step from 1 or 0 for none, figures from, to).
"""

DEMO = ("--lane", "5")
FLOATS = ("--floats", "0.5", "-0.3", "0.8", "-0.1", "0.6", "-0.4", "0.2", "0")
VIEWS = (
    (
        "idea",
        "What the kernel is for, before how it does it",
        "one product, one packed word, one stripe of the weights, and the bytes that are saved",
        (),
        "idea",
        0,
        0,
        4,
    ),
    (
        "phases",
        "The big picture: the phases of a run and what each does",
        (
            "six phases as a flow, made of the kernel's own verbs and their counts; each has a"
            " colour, in the timelines too"
        ),
        (),
        "phases",
        0,
        0,
        1,
    ),
    (
        "verbs",
        "What each device function moved and did",
        "instructions, bytes, coalescing, conflicts and tensor operations of every verb",
        (),
        "phases",
        0,
        1,
        3,
    ),
    (
        "weights",
        "From floats to a scale, to codes, to bytes at their addresses",
        (
            "eight weights of yours: their bytes by four conventions (none of them is the 0x3C of"
            " an often copied picture), and where they are in Marlin's matrix"
        ),
        FLOATS,
        "weights",
        0,
        0,
        3,
    ),
    (
        "launch",
        "Launch configuration: grid, blocks, threads, shared memory",
        "what was launched, with registers, configuration and the reasons for it",
        (),
        "launch",
        0,
        0,
        1,
    ),
    (
        "grid",
        "The grid, seen from above: which block has which tile",
        (
            "which block read which weights, from the addresses: three blocks for two columns of"
            " tiles. A stripe need not be a rectangle: block 1 has the end of one column and the"
            " beginning of the next, and adds up with block 0, then with block 2"
        ),
        ("--sms", "3"),
        "launch",
        0,
        1,
        2,
    ),
    (
        "warps",
        "A block from inside: what each of its warps has to do",
        (
            "the columns and k16 rows of each warp, from its loads, and its verbs. Warps share"
            " columns and part k; none of them owns rows of C"
        ),
        (),
        "launch",
        0,
        2,
        3,
    ),
    (
        "copies",
        "Global to shared: who copies which bytes, coalesced or not",
        (
            "each lane's source, sectors asked for and needed, the place in shared memory and its"
            " banks"
        ),
        (),
        "copies",
        1,
        2,
        4,
    ),
    (
        "swizzle",
        "What lies where in shared memory",
        "the XOR swizzle, as it was written",
        (),
        "copies",
        0,
        1,
        2,
    ),
    (
        "memory",
        (
            "Memory hierarchy: sizes and rates of the levels, what is in them, what passes between"
            " them"
        ),
        (
            "the chosen device's sizes by its data sheet (an H200 has 60 MiB of L2, an A100 40, not"
            " 6), the bytes of this run counted, latency and rate as an H200 measured them"
        ),
        (),
        "memory",
        0,
        0,
        2,
    ),
    (
        "word",
        "INT4 packing, byte by byte",
        (
            "a word of the packed matrix: code 0 is the lowest nibble, and neighbours in a word are"
            " 8 of k apart, not side by side"
        ),
        (),
        "unpack",
        1,
        1,
        3,
    ),
    (
        "lop3",
        "Unpacking: from nibbles to fp16",
        "lop3 takes two codes at once ...",
        (),
        "unpack",
        2,
        1,
        2,
    ),
    (
        "sub",
        "... and turns them into numbers",
        (
            "... and one subtraction makes both of them values. No shift and mask a nibble, no sign"
            " extension: registers of the real run"
        ),
        (),
        "unpack",
        3,
        1,
        2,
    ),
    (
        "values",
        "What the word has become",
        "code, k, n, value, scale and the register that holds it",
        (),
        "unpack",
        15,
        1,
        2,
    ),
    (
        "lane",
        "Registers of a thread: fragments of A, B and C",
        "what one lane holds for one product, with its coordinates",
        (),
        "fragments",
        1,
        1,
        2,
    ),
    (
        "fragments",
        "The lane map of a tensor-core product",
        (
            "A, coloured by register, one lane marked. Lane 4 g + t holds rows g and g + 8: not two"
            " whole rows to eight lanes. B and C follow on the page"
        ),
        (),
        "fragments",
        1,
        2,
        3,
    ),
    (
        "sums",
        "Accumulate, reduce, write out",
        "one lane's sums product by product, across warps, across blocks",
        (),
        "sums",
        0,
        0,
        3,
    ),
    (
        "locks",
        "How blocks take turns",
        "every access to the locks, of all blocks",
        (),
        "sums",
        0,
        3,
        4,
    ),
    (
        "states",
        "The pipeline's state machine",
        "what every stage was doing whenever the block began to use another one",
        (),
        "pipeline",
        0,
        0,
        2,
    ),
    (
        "buffers",
        "Buffers in shared memory",
        "where the stages lie and what is copied there, to scale, and the block's share of an SM",
        (),
        "pipeline",
        0,
        2,
        5,
    ),
    (
        "order",
        "Activity over time",
        (
            "the phases of each warp of a block, in the order in which the machine ran them"
            " (`--perfetto` has every instruction)"
        ),
        (),
        "timeline",
        0,
        0,
        1,
    ),
    (
        "overlap",
        "Timeline without and with the pipeline, and with a plain double buffer",
        "modelled, by rules that stand under it, from the fills that were recorded",
        (),
        "timeline",
        0,
        3,
        7,
    ),
    (
        "units",
        "Copies, loads, arithmetic and tensor cores over time",
        "when the warps of a block issued to each unit, in the order of the PTX machine",
        (),
        "timeline",
        0,
        2,
        3,
    ),
    (
        "roles",
        "Warp specialisation: the roles of a block, side by side",
        (
            "scheduler, loads, expansion, mma and epilogue of the kernel of two NVFP4 operands, in"
            " an order in which every warp issues at the same rate, so that producers run ahead"
        ),
        ("--kernel", "block_scaled"),
        "timeline",
        0,
        0,
        1,
    ),
    (
        "rings",
        "The pipelines between the roles",
        "who fills, waits for and gives back what, by the accesses to mbarriers that were recorded",
        ("--kernel", "tcgen05"),
        "pipeline",
        0,
        5,
        7,
    ),
    (
        "blockwise",
        "A block-scaled product",
        "one sum, block by block: codes times codes, times both scales",
        ("--kernel", "block_mma"),
        "fragments",
        0,
        8,
        9,
    ),
    (
        "intensity",
        "Bytes and arithmetic intensity beside fp16 weights",
        "bytes that must move, what this run asked for, the device's ridge",
        (),
        "intensity",
        0,
        0,
        3,
    ),
    (
        "experts",
        "A mixture of experts: which block took which expert's rows",
        (
            "a line for each expert that a token goes to, a column for each step of its tiles: all"
            " of them in a row are cut into equal stripes. Experts without a token are not read"
        ),
        ("--kernel", "moe"),
        "experts",
        0,
        0,
        2,
    ),
    (
        "gathered",
        "... whose rows a block gathered, and who wrote a token's rows",
        (
            "one bulk copy a row and stage, from where the token's row lies; of each token, which"
            " block wrote which expert's row"
        ),
        ("--kernel", "moe"),
        "experts",
        0,
        2,
        4,
    ),
    (
        "codes",
        "... of its weights: what the packed words of a warp have become",
        "B, coloured by register: the marked lane's four came out of its own word",
        (),
        "fragments",
        1,
        3,
        4,
    ),
    (
        "producer",
        "Warp specialisation in `decode`: one warp copies, eight multiply",
        "the warps of a block in the order of the PTX machine; the last one has nothing but copies",
        ("--kernel", "decode"),
        "timeline",
        0,
        0,
        1,
    ),
    (
        "warpgroups",
        "... and in `wgmma`: two warpgroups, each of which multiplies every second stage",
        "each expands its own weights; one thread of warp 8 copies, the rest of its group ends",
        ("--kernel", "wgmma"),
        "timeline",
        0,
        0,
        1,
    ),
    (
        "double",
        "A double buffer, beside none",
        (
            "modelled by the timeline's rules, from the fills of `buffered`: the next tiles arrive"
            " while these are multiplied"
        ),
        ("--kernel", "buffered"),
        "timeline",
        0,
        3,
        5,
    ),
)
