"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

GELU = "ep.gelu_tanh(ep.acc + ep.row(bias))"
RESIDUAL = "ep.load(residual) + alpha * (ep.acc + ep.row(bias))"
SCALED = "ep.relu(ep.acc * ep.column(x_scale) * ep.row(w_scale))"
LINEAR = "ep.cast(torch.bfloat16, ep.acc + ep.row(bias))"
ACTIVATED = "ep.cast(torch.bfloat16, ep.gelu(linear))"
STEPS = f"    linear = {LINEAR}\n    activated = {ACTIVATED}\n    tree = ep.load(residual) + activated\n"

WAIT = "    if warp == 0:\n        wait_stores(in_ring - 1)\n"
KNOWN = "    sync()\n    write(slot)\n"
FENCE = "    fence()\n    sync()\n"
SEND = "    if warp == 0:\n        send(slot)\n"
ALL = WAIT + KNOWN + FENCE + SEND

WRONG = {
    "07a": [
        (GELU, "ep.gelu(ep.acc + ep.row(bias))", 'approximate="tanh" is ep.gelu_tanh'),
        (GELU, "ep.gelu_tanh(ep.acc) + ep.row(bias)", "The bias is added after the activation"),
        (GELU, "ep.gelu_tanh(ep.acc + bias)", "wrap tensors in row(...), column(...) or load(...)"),
        (GELU, "ep.gelu_tanh(ep.acc + ep.load(bias))", "bias has shape (N,): ep.row(bias)"),
        (GELU, "ep.gelu_tanh(ep.acc + ep.row(bias.float()))", "one more kernel for every launch"),
        (
            GELU,
            'torch.nn.functional.gelu(ep.acc + ep.row(bias), approximate="tanh")',
            "A torch function computes with tensors",
        ),
        (GELU, "ep.gelu_tanh(ep.row(bias))", "ep.acc, which is x @ w.T, does not occur"),
        (f"    tree = {GELU}\n", "    expression = tree = ...\n", "`bias_gelu` is not filled in yet"),
        (GELU, "ep.acc.float()", "An expression is no tensor"),
        (GELU, "torch.tanh(bias)", "returns a Tensor; wanted is an expression over ep.acc"),
        (RESIDUAL, "alpha * (ep.acc + ep.row(bias) + ep.load(residual))", "alpha scales the residual, too"),
        (RESIDUAL, "ep.load(residual) + alpha * ep.acc + ep.row(bias)", "the bias belongs inside the parentheses"),
        (RESIDUAL, "ep.load(residual) + ep.acc + ep.row(bias)", "alpha is missing"),
        (
            RESIDUAL,
            "ep.load(alpha * residual) + ep.acc + ep.row(bias)",
            "given a tensor that PyTorch has computed first",
        ),
        (
            RESIDUAL,
            "ep.load(residual) + ep.apply(lambda v: alpha * v, ep.acc + ep.row(bias))",
            "`<lambda>` is made anew in every call",
        ),
        (SCALED, "ep.relu(ep.acc * ep.row(x_scale) * ep.row(w_scale))", "x_scale has shape (M,): ep.column(x_scale)"),
        (SCALED, "ep.relu(ep.acc * ep.column(w_scale) * ep.row(x_scale))", "has shape (N,): ep.row(w_scale)"),
        (SCALED, "ep.relu(ep.acc * ep.column(x_scale[:, None]) * ep.row(w_scale))", "it is given (37, 1)"),
        (SCALED, "ep.relu(ep.acc * (ep.column(x_scale) + ep.row(w_scale)))", "Read the expression from the inside out"),
        (SCALED, "ep.acc * ep.column(x_scale) * ep.row(w_scale)", "The ReLU is missing"),
        (SCALED, "ep.relu(ep.acc * ep.column(x_scale))", "The scale of w is missing"),
        (SCALED, "ep.apply(torch.relu, ep.acc * ep.column(x_scale) * ep.row(w_scale))", "It does not compile"),
        (STEPS, "    tree = ep.load(residual) + ep.gelu(ep.acc + ep.row(bias))\n", "Nothing is rounded on the way"),
        (LINEAR, "ep.acc + ep.row(bias)", "What F.linear returns is not rounded"),
        (ACTIVATED, "ep.gelu(linear)", "What F.gelu returns is not rounded"),
        (LINEAR, "ep.cast(torch.bfloat16, ep.acc) + ep.row(bias)", "You round the product before the bias is added"),
        (
            LINEAR,
            "ep.cast(torch.bfloat16, ep.cast(torch.bfloat16, ep.acc) + ep.row(bias))",
            "You round the product, and then the sum with the bias",
        ),
        (LINEAR, "ep.cast(ep.acc + ep.row(bias), torch.bfloat16)", "The arguments are exchanged"),
        (STEPS, STEPS.replace("bfloat16", "float16"), "That rounds to fp16"),
        (ACTIVATED, "ep.cast(torch.bfloat16, ep.gelu_tanh(linear))", "GELU is the exact one here"),
        (ACTIVATED, "ep.cast(torch.float32, ep.gelu(linear))", "dtype is torch.float32"),
    ],
    "07b": [
        ("    fence()\n", "", "a barrier does not order the one before the other"),
        ("in_ring - 1", "in_ring", "At most 1 may be left"),
        (WAIT, WAIT.replace("in_ring - 1", "0"), "Only the one that used it last"),
        (WAIT, WAIT.replace("in_ring - 1", "in_ring - 2"), "wait_stores(-1) waits until -1 stores are left"),
        (WAIT, WAIT.replace("in_ring - 1", "1"), "ring of 1 slot: warp"),
        (WAIT, "", "Nobody waits for the stores"),
        (WAIT, WAIT.replace("== 0", "== 1"), "Warp 1 waits, and has no stores to wait for"),
        (
            WAIT + KNOWN,
            WAIT + KNOWN.removeprefix("    sync()\n"),
            "from a barrier between warp 0's wait and its own write",
        ),
        (
            WAIT + KNOWN,
            "    wait_stores(in_ring - 1)\n    write(slot)\n",
            "Its own wait_stores has nothing to wait for",
        ),
        (WAIT + KNOWN, "    sync()\n" + WAIT + "    write(slot)\n", "from a barrier between warp 0's wait"),
        (WAIT + KNOWN, "    write(slot)\n" + WAIT + "    sync()\n", "The wait stands behind the write"),
        (ALL, KNOWN + FENCE + SEND + "        wait_stores(in_ring)\n    sync()\n", "At most 1 may be left"),
        (
            ALL,
            "    write(slot)\n" + FENCE + SEND + "        wait_stores(in_ring - 1)\n",
            "from a barrier between warp 0's wait",
        ),
        (KNOWN + FENCE, "    sync()\n    fence()\n    write(slot)\n    sync()\n", "The fence stands before the write"),
        (FENCE, "    sync()\n    fence()\n", "The fence stands behind the last barrier"),
        (FENCE, "    sync()\n    if warp == 0:\n        fence()\n", "takes effect in the thread that executes it"),
        (FENCE, "    if warp == 0:\n        fence()\n    sync()\n", "of warp 0's, PTX promises nothing"),
        (FENCE, "    fence()\n", "Between the writes and the send stands a barrier"),
        (FENCE + SEND, "    fence()\n" + SEND + "    sync()\n", "Between the writes and the send stands a barrier"),
        (FENCE + SEND, FENCE + "    send(slot)\n", "One warp sends for all four"),
        (FENCE + SEND, FENCE + SEND.replace("== 0", "== 3"), "nobody for another warp's"),
        (FENCE + SEND, FENCE, "Warp 0 sends"),
        (KNOWN, "    sync()\n    if warp == 0:\n        write(slot)\n", "All four warps write"),
        (WAIT + KNOWN, WAIT + "        sync()\n    write(slot)\n", "no `if warp == 0` around a sync()"),
        (FENCE + SEND, FENCE + "    with cute.arch.elect_one():\n        send(slot)\n", "stands inside elect_one()"),
        (KNOWN, KNOWN.replace("slot", "slot + 1"), "`slot` is the number of the slot to use now"),
        (FENCE, "    fence()\n    cute.arch.sync_threads()\n", "sync() is the barrier of these 128 threads"),
    ],
}
