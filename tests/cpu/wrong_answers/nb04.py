"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

WRONG = {
    "04a": [
        ("return 4 * consumer_warp_groups", "return 128 * consumer_warp_groups", "as if each thread arrived"),
        ("return 4 * consumer_warp_groups", "return consumer_warp_groups", "as if one thread of a warp group arrived"),
        ("cluster_m + cluster_n - 1", "1", "which forgets the other CTAs"),
        ("cluster_m + cluster_n - 1", "cluster_m * cluster_n", "as if all 4 CTAs of the cluster received"),
        ("cluster_m + cluster_n - 1", "cluster_m + cluster_n", "which counts this CTA twice"),
        (
            "(at_launch * warp_groups - producer)",
            "(512 - producer)",
            "The pool is what the launch took, 61,440 registers",
        ),
        ("(at_launch * warp_groups - producer)", "(at_launch * warp_groups)", "for ever in setmaxnreg.inc"),
        ("// (128 * warp_groups) // 8 * 8", "// (128 * warp_groups)", "registers come in multiples of 8"),
        ("65536 // (128", "32768 // (128", "each thread could have more at launch"),
        ("producer = 24", "producer = 40", "let it keep the least that setmaxnreg allows"),
        ("min(240,", "min(200,", "registers stay unused"),
    ],
    "04b": [
        (
            "        cute.arch.setmaxregister_decrease(24)\n",
            "        if warp == 0:\n            cute.arch.setmaxregister_decrease(24)\n",
            "all four warps of the producer group must decrease",
        ),
        ("cute.arch.setmaxregister_decrease(24)", "produce_with = 24", "wait for registers that nobody gives back"),
        ("decrease(24)", "decrease(32)", "setmaxnreg"),
        ("        cute.arch.setmaxregister_increase(240)\n", "", "setmaxnreg is not executed by warps"),
        ("                ring.producer_acquire(state)\n", "", "acquire a stage before you load into it"),
        ("                state.advance()\n", "", "acquire, load, advance, once per k-tile"),
        ("load(k, state.index,", "load(0, state.index,", "Load k-tile k into the stage"),
        ("load(k, state.index,", "load(k, 0,", "stage 0 holds A of k-tile 1"),
        ("        consume()\n", "", "who calls consume()?"),
    ],
}
