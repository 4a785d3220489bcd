"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

LOOP = "    for index in cutlass.range(first + group * step, tiles, 2 * step, unroll=1):\n"
SYNC = "        cute.arch.barrier(barrier_id=ORDER + group, number_of_threads=256)\n"
ISSUE = "        state, last = multiply(index, state)\n"
GIVE = (
    "        if index + step < tiles:\n"
    "            cute.arch.barrier_arrive(barrier_id=ORDER + 1 - group, number_of_threads=256)\n"
)
SKIP = "        state.advance(k_tiles)\n"
STORE = "        store(index, last)\n"

WRONG = {
    "06a": [
        (LOOP, LOOP.replace("tiles,", "tiles + group * step,"), "Consumer 2 waits for a turn with nothing to multiply"),
        (
            GIVE,
            GIVE.replace("index + step < tiles", "index < tiles"),
            "A turn was given for a tile that does not exist",
        ),
        (GIVE, GIVE.replace("index + step", "index + 1"), "A turn was given for a tile that does not exist"),
        (GIVE, GIVE.replace("index + step", "index + 2 * step"), "nobody gives it the turn"),
        (ISSUE + GIVE, GIVE + ISSUE, "Both feed the tensor cores at once"),
        (GIVE + SKIP + STORE, SKIP + STORE + GIVE, "the turn is given away after the store"),
        (GIVE + SKIP + STORE, SKIP + STORE + GIVE, "A test of overlap: here a store ends when the other has begun"),
        (
            LOOP,
            LOOP.replace("2 * step", "step"),
            "Tile 1 is taken twice, by consumer 1 and by consumer 2. Yours go on by step = 1",
        ),
        (LOOP + SYNC, LOOP, "does not wait for its turn"),
        (LOOP + SYNC, LOOP + SYNC.replace("+ group", "+ 1 - group"), "own barrier is"),
        (LOOP + SYNC, LOOP + SYNC.replace("ORDER + group", "1 + group"), "3 and 4"),
        (GIVE, GIVE.replace("256", "128"), "A turn has 256 threads"),
        (GIVE, GIVE.replace("ORDER + 1 - group", "ORDER + group"), "nobody gives it the turn"),
        (GIVE + SKIP, GIVE, "steps over the k_tiles of the other"),
        (
            LOOP,
            LOOP.replace("first + group * step, tiles, 2 * step", "first, tiles, step"),
            "Tile 0 is taken twice, by consumer 1 and by consumer 2",
        ),
        (
            LOOP,
            LOOP.replace("group * step, tiles, 2 * step", "group, tiles, 2"),
            "Count each one's rounds by themselves",
        ),
        (
            GIVE + SKIP + STORE,
            GIVE + SKIP + STORE.replace("last", "state"),
            "which `multiply` returned as the second thing",
        ),
        (GIVE + SKIP + STORE, GIVE + SKIP, "A stage is not handed back"),
    ],
    "06b": [
        ("phase = phase ^ (behind // stages % 2)", "phase = phase", "passes the end of the ring once: the phase flips"),
        ("behind // stages % 2", "(behind >= stages)", "an even number cancels"),
        ("phase = phase ^ (behind // stages % 2)", "phase = behind // stages % 2", "the phase stays what it was"),
        ("behind // stages % 2", "behind // stages", "A phase is one bit"),
        ("behind // stages % 2", "k_tiles // stages % 2", "the phase flips"),
        (
            "index = behind % stages",
            "index = behind - stages if behind >= stages else behind",
            "however many laps lie between",
        ),
        (
            "    behind = index + k_tiles\n    phase = phase ^ (behind // stages % 2)\n    index = behind % stages\n",
            "    for _ in range(k_tiles):\n"
            "        index += 1\n"
            "        if index == stages:\n"
            "            index, phase = 0, phase ^ 1\n",
            "count the laps, walk none",
        ),
        ("(stages - 1) // (tiles - 1)", "stages // (tiles - 1)", "it stepped over the end of the ring"),
        (
            "(stages - 1) // (tiles - 1)",
            "stages - 1",
            "6 stages, 3 tiles: you say 5. With 3 k-tiles tile 2 begins at k-tile 6",
        ),
        ("(stages - 1) // (tiles - 1)", "(stages - 1) // tiles", "would do as well"),
        ("(stages - 1) // (tiles - 1)", "(stages - 1) / (tiles - 1)", "a number of k-tiles, an int"),
    ],
}
