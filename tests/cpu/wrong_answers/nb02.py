"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

WRONG = {
    "02a": [
        ("2 * 128 * 64 * 2)", "128 * 64 * 2)", "bring 32,768: the barrier opens before all have landed"),
        ("2 * 128 * 64 * 2)", "2 * 128 * 64 * 4)", "You announce 65,536 bytes a k-tile"),
        ("phase = phase ^ 1", "phase = phase", "Check the parity: the barrier completes once per k-tile"),
        ("        cute.arch.mbarrier_wait(full, phase)\n", "", "No warp waits for the barrier"),
        ("        cute.arch.sync_threads()\n", "", "every warp must be done with the stage"),
        ("        warpgroup.wait_group(0)\n", "", "A WGMMA group runs on after its issue"),
        (
            "with cute.arch.elect_one():\n                cute.arch.mbarrier_arrive_and_expect_tx",
            "cute.arch.mbarrier_arrive_and_expect_tx",
            "one elected thread of warp 0 announces the bytes",
        ),
        ("load_b(k, full)", "load_b(0, full)", "stage 0 holds B of k-tile 0"),
        ("sync_threads", "syncthreads", "the simulator does not know"),
    ],
    "02b": [
        ("column < out.shape[0] and row < out.shape[1]", "True", "elements beyond the output are overwritten"),
        ("column < out.shape[0] and row < out.shape[1]", "column < out.shape[0]", "the second below 200"),
        (
            "column < out.shape[0] and row < out.shape[1]",
            "row < out.shape[0] and column < out.shape[1]",
            "32,768 elements are never stored",
        ),
        (
            "row, column = m * 128 + where[v][0], n * 128 + where[v][1]",
            "row, column = where[v]",
            "Where do tiles other than (0, 0) start?",
        ),
        ("out[column, row]", "out[row, column]", "out is the transpose: its first index is n"),
        ("acc[v].to(out.element_type)", "acc[0].to(out.element_type)", "holds the product's element"),
    ],
}
