"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

FAKE = "    y = x.new_empty((*x.shape[:-1], w_gate.shape[0]))\n"
ROWS = "    rows, d = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])\n"
DENSITY = "    density = torch.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)\n"
SLOPE = "    slope = 0.5 * (1 + torch.erf(gate / math.sqrt(2))) + gate * density\n"
BOTH = "    d_gate, d_up = d * up * slope, d * F.gelu(gate)\n"
DX = "    dx = (d_gate @ w_gate + d_up @ w_up).view(x.shape)\n"
WEIGHTS = "    dw_gate, dw_up = d_gate.T @ rows, d_up.T @ rows\n"

MAJORS = "    majors = major(call.a), *map(major, call.weights)\n"
DTYPES = "    dtypes = call.a.dtype, call.out_dtype or call.a.dtype\n"
BIASES = "    biases = tuple(None if bias is None else bias.dtype for bias in call.biases)\n"
KERNEL = (
    "    key = (call.kernel, call.config, call.a.device, dtypes, majors, call.activation, biases, call.early_weights)\n"
)
OPERANDS = "    operands = (call.a, *call.weights, *call.biases, call.out)\n"
FORMS = "    forms = tuple(None if t is None else (t.shape, t.stride, t.dtype, t.device) for t in operands)\n"
HOW = "    how = call.activation, call.early_weights, type(call.early_weights), call.out_dtype\n"
CALL = "    key = (call.kernel, call.config, how, forms)\n"

WRONG = {
    "12a": [
        (FAKE, "    y = torch.empty(*x.shape[:-1], w_gate.shape[0])\n", "takes PyTorch's defaults"),
        (FAKE, "    y = torch.empty(*x.shape[:-1], w_gate.shape[0], dtype=x.dtype)\n", "takes the device from x"),
        (FAKE, FAKE.replace("w_gate.shape[0]", "w_gate.shape[1]"), "nn.Linear has weights (N, K)"),
        (FAKE, FAKE.replace("*x.shape[:-1]", "x.shape[0]"), "any number of leading dimensions"),
        (FAKE, FAKE.replace("*x.shape[:-1]", "*x.shape[1:]"), "All dimensions of x but the last stay"),
        (
            FAKE,
            "    y = torch.empty_like(x)[..., :1].expand(*x.shape[:-1], w_gate.shape[0])\n",
            "The kernel writes row by row, however x lies",
        ),
        (FAKE, "    y = (*x.shape[:-1], w_gate.shape[0])\n", "wanted: a tensor without values"),
        (FAKE, FAKE.replace("*x.shape[:-1]", "*map(int, x.shape[:-1])"), "a size is turned into a plain number there"),
        (
            FAKE,
            "    y = x.new_empty((x.numel() // 16, 24)).view(*map(int, x.shape[:-1]), 24)\n",
            "Sizes are used as they come",
        ),
        (ROWS, ROWS.replace("dy.reshape", "dy.view"), "`backward` raised RuntimeError"),
        (ROWS, ROWS.replace("x.reshape", "x.view"), "`backward` raised RuntimeError"),
        (ROWS, "    rows, d = x, dy\n", "`backward` raised"),
        (BOTH, BOTH.replace("slope", "F.gelu(gate)"), "GELU itself stands where its derivative belongs"),
        (SLOPE, SLOPE.replace(" + gate * density", ""), "The second term is missing"),
        (SLOPE, "    slope = gate * density\n", "The first term is missing"),
        (DENSITY, DENSITY.replace(" / math.sqrt(2 * math.pi)", ""), "the factor 1 / sqrt(2 pi) is missing"),
        (DENSITY, DENSITY.replace(" / 2)", ")"), "the exponent is -g^2 / 2"),
        (
            SLOPE + BOTH,
            '    d_gate = torch.ops.aten.gelu_backward(d * up, gate, approximate="tanh")\n    d_up = d * F.gelu(gate)\n',
            "the derivative of the tanh approximation",
        ),
        (
            SLOPE + BOTH,
            "    d_gate = torch.ops.aten.silu_backward(d * up, gate)\n    d_up = d * F.gelu(gate)\n",
            "the derivative of SiLU",
        ),
        (BOTH, BOTH.replace("d * up * slope", "d * slope"), "d gate lacks the other factor"),
        (BOTH, BOTH.replace("F.gelu(gate)", "gate"), "GELU(gate), not gate"),
        (BOTH, BOTH.replace("d * F.gelu(gate)", "d"), "d up lacks the other factor"),
        (DX, "    dx = (d_gate @ w_gate).view(x.shape)\n", "dx has the gate's share alone"),
        (DX, "    dx = (d_up @ w_up).view(x.shape)\n", "dx has the up's share alone"),
        (DX, DX.replace("+", "-"), "Both weights' gradients are right, dx is not"),
        (DX, DX.replace(".view(x.shape)", ""), "dx has x's leading dimensions"),
        (WEIGHTS, "    dw_up, dw_gate = d_gate.T @ rows, d_up.T @ rows\n", "dw_gate and dw_up are exchanged"),
        (WEIGHTS, "    dw_gate, dw_up = rows.T @ d_gate, rows.T @ d_up\n", "A weight's gradient is d.T @ rows"),
        (WEIGHTS, WEIGHTS.replace("d_gate.T", "d.T"), "dx right, dw_gate off by"),
        (WEIGHTS, WEIGHTS + "    dx = dx.float() if x.dtype == torch.bfloat16 else dx\n", "a gradient has the dtype"),
    ],
    "12b": [
        (
            KERNEL,
            KERNEL.replace("majors, ", "majors, call.a.shape, "),
            "separates two calls that should share: M 64 -> 48",
        ),
        (
            KERNEL,
            KERNEL.replace("majors, ", "call.a.stride, majors, "),
            "separates two calls that should share: N and K",
        ),
        (
            KERNEL,
            KERNEL.replace("majors, ", "call.a.stride[-2], majors, "),
            "Each such call would compile a kernel anew",
        ),
        (
            KERNEL,
            KERNEL.replace("majors, ", "call.weights[0].stride, majors, "),
            "separates two calls that should share",
        ),
        (KERNEL, KERNEL.replace("call.a.device", "call.a.address"), "Addresses are arguments"),
        (KERNEL, KERNEL.replace("call.config, ", ""), "must not share: M 64 -> 4096, another configuration"),
        (KERNEL, KERNEL.replace("call.kernel, ", ""), "must not share: another kernel"),
        (KERNEL, KERNEL.replace("call.a.device, ", ""), "must not share: GPU 0 -> GPU 1"),
        (KERNEL, KERNEL.replace("dtypes, ", ""), "must not share: bf16 -> fp16"),
        (KERNEL, KERNEL.replace("call.activation, ", ""), "must not share: swiglu -> geglu"),
        (KERNEL, KERNEL.replace("biases, ", ""), "must not share: no bias -> a bias of the gate"),
        (KERNEL, KERNEL.replace(", call.early_weights", ""), "Where the wait stands is code"),
        (KERNEL, KERNEL.replace("majors, ", ""), "must not share: gemm: b -> the transpose of a matrix"),
        (KERNEL, KERNEL.replace("majors, ", "majors, call.out is None, "), "should share: a new tensor -> out="),
        (MAJORS, "    majors = (major(call.a),)\n", "must not share: gemm: b -> the transpose of a matrix"),
        (DTYPES, "    dtypes = call.a.dtype, call.out_dtype\n", "None means a's dtype"),
        (DTYPES, "    dtypes = call.a.dtype\n", "must not share: gemm: out_dtype -> fp32"),
        (BIASES, "    biases = [b and b.dtype for b in call.biases]\n", "cannot be the key of a dict"),
        (BIASES, "    biases = tuple(b.dtype for b in call.biases if b is not None)\n", "does not say where"),
        (BIASES, "    biases = tuple(b is not None for b in call.biases)\n", "The width of its loads is code"),
        (KERNEL, "    key = (object(), dtypes, majors, biases)\n", "is new each time"),
        (KERNEL, "    key = None\n", "returns None"),
        (FORMS, FORMS.replace("t.shape, ", ""), "must not share: M 64 -> 48"),
        (FORMS, FORMS.replace("t.stride, ", ""), "The pitch must be a multiple of 16 bytes"),
        (FORMS, FORMS.replace("t.dtype, ", ""), "must not share: bf16 -> fp16"),
        (FORMS, FORMS.replace(", t.device", ""), "must not share: GPU 0 -> GPU 1"),
        (FORMS, FORMS.replace("t.device", "t.device, t.address"), "they are looked at each time, beside the key"),
        (
            FORMS,
            "    forms = tuple((t.shape, t.stride, t.dtype, t.device) for t in operands if t)\n",
            "must not share: a bias of the gate -> a bias of up",
        ),
        (OPERANDS, "    operands = (call.a, *call.weights, *call.biases)\n", "Out is checked, and no tensor is made"),
        (HOW, HOW.replace(" type(call.early_weights),", ""), "to a dict they are one key"),
        (HOW, HOW.replace(" call.early_weights, type(call.early_weights),", ""), "must not share: early_weights"),
        (HOW, HOW.replace(", call.out_dtype", ""), "must not share: gemm: out_dtype -> fp32"),
        (CALL, CALL.replace("call.config, ", ""), "the caller asks for another configuration"),
        (CALL, CALL.replace("call.kernel, ", ""), "must not share: another kernel"),
        (CALL, "    key = (call.kernel, call.config, how, call)\n", "each pays for all checks"),
    ],
}
