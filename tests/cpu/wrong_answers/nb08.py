"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

LOOP = "        for tensor in (*reads, *writes):\n"
TOTAL = "            total += 2 * size[rows] * size[columns]\n"
WIDE = 'for reads, writes in launches for tensor in (*reads, *writes) if dims[tensor] == "MN"]'
EXTRA = "    extra = len(wide) - len(needed)\n"
SOLVED = "passes * ridge * (1 - share) / (share * gemms)"

BLOCK = '    if layout.startswith("interleaved"):\n        block = int(layout.partition("_")[2] or 1)\n'
UNBIND = "    gate, up = both.unflatten(-1, (-1, 2, block)).unbind(-2)\n"
EXCHANGE = '    if layout == "up_gate":\n        gate, up = up, gate\n'
SPLIT = "    gate, up = halves(F.linear(x, w), layout)\n"
PRODUCT = "    h = (F.silu(gate) * up).flatten(1)\n"

WRONG = {
    "08a": [
        (TOTAL, TOTAL.replace("2 * ", ""), "bf16 has 2 bytes"),
        (LOOP, LOOP.replace("(*reads, *writes)", "reads"), "What is written is missing"),
        (LOOP, LOOP.replace("(*reads, *writes)", "writes"), "What is read is missing"),
        (LOOP, LOOP.replace("(*reads, *writes)", "{*reads, *writes}"), "read and written by one launch moves twice"),
        (
            "    total = 0\n    for reads, writes in launches:\n" + LOOP,
            "    total = 0\n    for _ in (1,):\n"
            "        for tensor in {t for reads, writes in launches for t in (*reads, *writes)}:\n",
            "A launch keeps nothing",
        ),
        (
            TOTAL,
            TOTAL.replace("total +=", 'total += dims[tensor] == "MN" and'),
            "The launch moves its x and its weights, too",
        ),
        (
            "    for reads, writes in launches:\n" + LOOP,
            "    for reads, writes in launches[-1:]:\n" + LOOP,
            "That is the last launch alone",
        ),
        (EXTRA, "    extra = len(wide)\n", "the fused kernel writes h, too"),
        (WIDE, WIDE.replace(' if dims[tensor] == "MN"', ""), "fusion does not change what a GEMM reads of them"),
        (EXTRA, "    extra = len(set(wide)) - len(set(needed))\n", "A pass is a read or a write"),
        (WIDE, WIDE.replace("(*reads, *writes)", "writes"), "What is written is read again"),
        (WIDE, WIDE.replace("(*reads, *writes)", "reads"), "Somebody has written what is read"),
        (WIDE, WIDE.replace("(*reads, *writes)", "{*reads, *writes}"), "passed over twice, in and out"),
        (EXTRA, "    extra = len(needed) - len(wide)\n", "The other way round"),
        (EXTRA, "    extra = len(launches) - len(fused)\n", "A launch may make several passes"),
        (EXTRA, "    extra = len([tensor for tensor in wide if tensor not in needed])\n", "subtract the counts"),
        (EXTRA, "    extra = float(len(wide) - len(needed))\n", "an int"),
        (SOLVED, "passes * ridge / (share * gemms)", "p / (p + g), not p / g"),
        (SOLVED, "passes * ridge * (1 - share) / share", "The number of GEMMs is missing"),
        (SOLVED, "ridge * (1 - share) / (share * gemms)", "The number of passes is missing"),
        (SOLVED, "gemms * ridge * (1 - share) / (share * passes)", "GEMMs and passes are exchanged"),
        (SOLVED, "passes * ridge * share / ((1 - share) * gemms)", "Upside down"),
        (SOLVED, "share * gemms / ((1 - share) * passes)", "wanted is K"),
        (SOLVED, "2 * " + SOLVED, "A factor of 2"),
    ],
    "08b": [
        (EXCHANGE, "", "In up_gate the first half is up's"),
        (EXCHANGE, EXCHANGE.replace("==", "!="), "Gate and up are exchanged"),
        (BLOCK, "", "as [gate; up] has it"),
        (BLOCK, "    block = 1\n", "That is every second column"),
        ('int(layout.partition("_")[2] or 1)', "8", "That is for blocks of 8"),
        (UNBIND, UNBIND.replace("(-1, 2, block)).unbind(-2)", "(2, -1, block)).unbind(-3)"), "as [gate; up] has it"),
        (
            UNBIND,
            UNBIND.replace("(-1, 2, block)).unbind(-2)", "(-1, block, 2)).unbind(-1)"),
            "That is every second column",
        ),
        (
            UNBIND + EXCHANGE,
            UNBIND + EXCHANGE + "    gate, up = gate.reshape(len(both), -1), up.reshape(len(both), -1)\n",
            "they were copied",
        ),
        (
            UNBIND + EXCHANGE,
            UNBIND + EXCHANGE + "    gate, up = gate.view(len(both), -1), up.view(len(both), -1)\n",
            "no view has them in one axis of N",
        ),
        (EXCHANGE, EXCHANGE + "    gate = gate.contiguous()\n", "they were copied"),
        (EXCHANGE, EXCHANGE + "    gate, up = gate[..., :1], up[..., :1]\n", "of one branch"),
        (SPLIT + PRODUCT, SPLIT + PRODUCT.replace("silu(gate) * up", "silu(up) * gate"), "SiLU sits on up"),
        (PRODUCT, PRODUCT.replace("F.silu(gate)", "gate"), "SiLU is missing"),
        (PRODUCT, PRODUCT.replace("silu(", "sigmoid("), "That is the sigmoid"),
        (PRODUCT, PRODUCT.replace(".flatten(1)", ""), "wanted is h"),
        (PRODUCT, PRODUCT.replace("flatten(1)", "transpose(1, 2).flatten(1)"), "in another order"),
        (
            SPLIT,
            "    gate, up = halves(w.T, layout)\n    gate, up = x @ gate.flatten(1), x @ up.flatten(1)\n",
            "one of 5 x 128 is wanted",
        ),
        (SPLIT, "    gate, up = halves(F.linear(x, w).clone(), layout)\n", "`clone` makes a tensor 5 x 128"),
        (SPLIT, "    gate, up = halves(F.linear(x, w.clone()), layout)\n", "of the weights' size"),
        (PRODUCT, PRODUCT.replace("F.silu(gate) * up", "F.silu(gate) * up * 1.0"), "silu(gate) * up is two"),
    ],
}
