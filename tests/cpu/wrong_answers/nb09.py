"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

LOOP = "    for index in cutlass.range(first + group * step, tiles, 2 * step, unroll=1):\n"
SHARED = "        shared = group == 1 or index + step < tiles  # the other one has a tile beside this one\n"
SYNC = "        cute.arch.barrier(barrier_id=ORDER + group, number_of_threads=256)\n"
GATE = "        state, last = gate(index, state)\n"
ARRIVE = "            cute.arch.barrier_arrive(barrier_id=ORDER + 1 - group, number_of_threads=256)\n"
ADVANCE = "            state.advance(k_tiles)\n"
GIVE = "        if shared:\n" + ARRIVE + ADVANCE
ACTIVATE = "        activate(index, last)\n"
AGAIN = "        if shared:\n    " + SYNC
UP = "        state, last = up(index, state)\n"
NEXT = "        if index + step < tiles:\n" + ARRIVE
OVER = "        if shared:\n" + ADVANCE
STORE = "        store(index, last)\n"

WRONG = {
    "09a": [
        (SHARED, "        shared = True\n", "between its loops nobody takes a turn"),
        (GATE + GIVE, GATE + ARRIVE[4:] + OVER, "A turn was given for a loop that does not exist: beside tile"),
        (GATE + GIVE + ACTIVATE + AGAIN, GATE + GIVE + ACTIVATE + SYNC, "between its loops nobody takes a turn"),
        (
            GATE + GIVE + ACTIVATE,
            GATE + "        if shared:\n" + ARRIVE + "        state.advance(k_tiles)\n" + ACTIVATE,
            "behind its gate's stages lie its up's own",
        ),
        (
            GATE + GIVE + ACTIVATE,
            GATE + NEXT + OVER + ACTIVATE,
            "who has a tile beside his gives the turn after the gate",
        ),
        (NEXT + OVER, "        if shared:\n" + ARRIVE + OVER, "only if there is a tile at index + step"),
        (NEXT + OVER + STORE, NEXT + STORE, "Behind each of its loops a consumer steps over the other's k_tiles"),
        (
            GIVE + ACTIVATE,
            GIVE.replace(ADVANCE, "") + ACTIVATE,
            "Behind each of its loops a consumer steps over the other's k_tiles",
        ),
        (GIVE + ACTIVATE, ACTIVATE + GIVE, "SiLU does not overlap"),
        (NEXT + OVER + STORE, STORE + NEXT + OVER, "the store does not overlap"),
        (LOOP + SHARED + SYNC, LOOP + SHARED, "does not wait for its turn before gate of tile 0"),
        (ACTIVATE + AGAIN, ACTIVATE, "does not wait for its turn before up of tile 0"),
        (ACTIVATE + AGAIN + UP, AGAIN + UP + ACTIVATE, "before it has activated its gate"),
        (NEXT + OVER, NEXT.replace("256", "128") + OVER, "A turn has 256 threads"),
        (NEXT + OVER, OVER, "gives it when its own up is issued"),
        (NEXT, NEXT.replace("if ", "if group == 0 and "), "has a gate to multiply, and nobody gives it the turn"),
        (SHARED + SYNC, SHARED + SYNC.replace("ORDER + group", "ORDER + 1 - group"), "own barrier is"),
        (SHARED + SYNC, SHARED + SYNC.replace("ORDER + group", "1 + group"), "turns have 3 and 4"),
        (LOOP, LOOP.replace("2 * step", "step"), "is taken twice, by consumer 1 and by consumer 2"),
        (LOOP, LOOP.replace(", tiles", ", tiles + group * step"), "for that one no producer loads anything"),
        (
            SHARED,
            SHARED.replace("group == 1 or ", ""),
            "does not wait for its turn before up of tile 1: between its loops",
        ),
        (OVER + STORE, OVER + STORE.replace("last", "state"), "which `gate` and `up` returned as the second thing"),
        (OVER + STORE, OVER, "A stage is not handed back"),
    ],
    "09b": [
        ("up = rows * columns // 128", "up = rows * columns // 256", "A consumer of pingpong has its tile alone"),
        ("up = rows * columns // 128", "up = columns", "rows * T values over 128 threads"),
        ("up = rows * columns // 128", "up = rows * columns", "a budget is of one of its 128 threads"),
        ("up // 2 if held", "up if held", "Packed, two 16-bit values share a register"),
        (
            '    gate = up // 2 if held == "packed" else up\n    total = gate + up + other\n',
            "    total = up + other\n",
            "the gate waits beside it",
        ),
        ("gate + up + other", "gate + up", "The others are missing"),
        ("gate + up + other", "gate + up / 1 + other", "wanted is an int"),
        ("range(8, 257, 8)", "range(8, 513, 8)", "A WGMMA is at most 256 columns wide"),
        ("range(8, 257, 8)", "range(8, 257, 4)", "A WGMMA's width is a multiple of 8"),
        ("range(8, 257, 8)", "range(8, 249, 8)", "A limit may be reached: what is just full fits"),
        (
            "registers(rows, t, held, other) <= limit",
            "registers(rows, t, held, other) < limit",
            "what is just full fits",
        ),
        ("registers(rows, t, held, other) <= limit", "registers(rows, t, held, 0) <= limit", "registers of"),
        ("stages * (rows + t) * 128", "stages * (rows + 2 * t) * 128", "A stage holds one weight at a time"),
        ("stages * (rows + t) * 128", "(rows + t) * 128", "A stage holds rows of A and T rows of one weight"),
        ('"packed": 80', '"packed": 30', "What is packed saves registers while up is multiplied"),
        ('"packed": 80', '"packed": 100', "others['packed'] = 100 gives T = 88 for 128 rows"),
        ('"fp32": 30', '"fp32": 33', "Less is alive besides gate and up than you allow for"),
        ('"fp32": 30', '"fp32": 12', "More is alive than you allow for"),
        ('"fp32": 30', '"fp32": 60', "it compiles without a spill"),
        ('{"fp32": 30, "packed": 80}', "30", "wanted is a dict"),
    ],
}
