"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

WRONG = {
    "03a": [
        ("full_parity = lap % 2", "full_parity = k % 2", "on lap 0: the consumer waits for full parity 1"),
        ("full_parity = lap % 2", "full_parity = 0", "K > 64 is not"),
        ("empty_parity = 1 - full_parity", "empty_parity = full_parity", "the producer waits for empty parity 0"),
        ("empty_parity = 1 - full_parity", "empty_parity = 1", "on lap 1: the producer waits for empty parity 1"),
        ("k % stages, k // stages", "min(k, stages - 1), k // stages", "a ring hands out its stages in turn"),
        ("full_parity = lap % 2", "full_parity = lap", "a parity is one bit"),
        ("full_parity = lap % 2", "full_parity = lap % 2 if k < 100 else 0", "k-tile 2147483647 of a ring of 5"),
    ],
    "03b": [
        (
            "            ring.consumer_release(done)\n",
            "            ring.consumer_release(read)\n",
            "in the order in which they were filled",
        ),
        ("wait_group(1)", "wait_group(2)", "You release a stage before the WGMMA that reads it has finished"),
        ("wait_group(1)", "wait_group(0)", "no WGMMA group stays in flight"),
        ("wait_group(1)", "wait_group(0 if k % 2 else 1)", "when k-tile 2 is issued, the one before is done"),
        (
            "            ring.consumer_release(done)\n",
            "            with cute.arch.elect_one():\n                ring.consumer_release(done)\n",
            "inside elect_one",
        ),
        (
            "        warpgroup.wait_group(1)\n        if k > 0:\n            ring.consumer_release(done)\n         "
            "   done.advance()\n",
            "        ring.consumer_release(done)\n        done.advance()\n        warpgroup.wait_group(1)\n",
            "move the release behind the wait_group",
        ),
        ("            ring.consumer_release(done)\n", "            pass\n", "A stage is not given back"),
        ("    warpgroup.wait_group(0)\n", "    warpgroup.wait_group(1)\n", "the last group still runs"),
        ("            done.advance()\n", "            pass\n", "With 2 stages"),
    ],
}
