"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

GATE = "    g = cute.arch.fmin(gate, Float32(7.0), nan=True)\n"
UP = "    u = cute.arch.fmin(cute.arch.fmax(up, Float32(-7.0), nan=True), Float32(7.0), nan=True)\n"
POWER = "    power = cute.math.exp2(g * Float32(-1.702 * math.log2(math.e)), fastmath=True)\n"
SIGMOID = "    sigmoid = cute.arch.rcp_approx(Float32(1.0) + power)\n"
RESULT = "    result = g * sigmoid * (u + Float32(1.0))\n"

PLACE = "    row = 16 * warp + lane // 4 + 8 * (v % 2)\n    column = 4 * (v // 2) + lane % 4\n"
PARTNERS = "    gate = 2 * (v // half) * half + v % half\n    up = gate + half\n"

WRONG = {
    "10a": [
        (GATE, GATE.replace(", nan=True", ""), "The gate loses a NaN"),
        (UP, UP.replace(", nan=True", ""), "The up branch loses a NaN"),
        (UP, UP.replace("Float32(-7.0), nan=True", "Float32(-7.0)"), "The up branch loses a NaN"),
        (GATE + UP, (GATE + UP).replace(", nan=True", ""), "Both branches lose a NaN"),
        (
            GATE,
            "    g = cute.arch.fmax(cute.arch.fmin(gate, Float32(7.0), nan=True), Float32(-7.0), nan=True)\n",
            "The gate is clamped on both sides",
        ),
        (GATE, "    g = min(gate, Float32(7.0))\n", "Python cannot decide by them"),
        (GATE, "    g = gate\n", "The gate is not clamped at 7"),
        (POWER, POWER.replace("exp2(g", "exp2(gate"), "The sigmoid, too, is of the clamped gate"),
        (RESULT, RESULT.replace("g *", "gate *"), "The factor before it is the clamped gate, too"),
        (UP, "    u = cute.arch.fmin(up, Float32(7.0), nan=True)\n", "The up branch is clamped above only"),
        (UP, "    u = up\n", "The up branch is not clamped"),
        (RESULT, "    result = g * sigmoid * u\n", "The + 1 of the up branch is missing"),
        (
            UP + POWER,
            UP.replace("fmax(up", "fmax(up + Float32(1.0)") + "    u = u - Float32(1.0)\n" + POWER,
            "before the clamp",
        ),
        (POWER, POWER.replace("-1.702 *", "-"), "1.702 is missing"),
        (POWER, POWER.replace(" * math.log2(math.e)", ""), "ex2 is 2^x, not e^x"),
        (POWER, POWER.replace("log2(math.e)", "log(2)"), "you divide by it"),
        (POWER, POWER.replace("-1.702", "1.702"), "The sign of the exponent"),
        (RESULT, "    result = sigmoid * (u + Float32(1.0))\n", "The sigmoid stands alone"),
        (RESULT, "    result = g * sigmoid\n", "The up branch is missing"),
        (
            POWER + SIGMOID,
            POWER.replace("-1.702", "1.702") + SIGMOID.replace("cute", "Float32(1.0) - cute"),
            "1 - s(-x) is a difference of numbers near 1",
        ),
        (
            POWER + SIGMOID,
            POWER
            + SIGMOID.replace(
                "cute.arch.rcp_approx(Float32(1.0) + power)", "power * cute.arch.rcp_approx(power + power * power)"
            ),
            "A NaN appears",
        ),
        (
            GATE,
            "    g = cutlass.select_(gate < Float32(7.0), gate, Float32(7.0))\n",
            "The gate loses a NaN",
        ),
        (SIGMOID, "    sigmoid = Float32(1.0) / (Float32(1.0) + power)\n", "Fp32 division is a routine"),
        (POWER, POWER.replace("exp2", "exp"), "The special function is 2^x, cute.math.exp2"),
        (
            POWER + SIGMOID,
            "    sigmoid = cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(g * Float32(-1.702 * math.log2(math.e))))\n",
            "scales what would be a denormal",
        ),
        (SIGMOID, SIGMOID.replace("cute.arch.rcp_approx", "1.0 / cute.math.tanh"), "cute.math.tanh is not needed here"),
        (RESULT, "    result = (g * sigmoid, u + Float32(1.0))\n", "wanted is one fp32 value"),
        (GATE, "    from cute_kernels.hopper.activation import oai_gate\n" + GATE, "Imports stand at the top"),
    ],
    "10b": [
        (
            PLACE,
            "    row = 16 * warp + lane // 4 + 8 * (v // 2 % 2)\n    column = 8 * (v // 4) + 2 * (lane % 4) + v % 2\n",
            "That is the map of a plain accumulator",
        ),
        (
            PLACE,
            PLACE.replace("column = 4 * (v // 2) + lane % 4", "column = 8 * (v // 2) + 2 * (lane % 4)"),
            "column 2j becomes j",
        ),
        (PLACE, PLACE.replace("16 * warp + ", ""), "Each warp owns 16 rows of the 64"),
        (PLACE, PLACE.replace("16 * warp + ", ""), "3,072 elements are written by nobody, such as (16, 0)"),
        (PLACE, PLACE.replace(" + 8 * (v % 2)", ""), "a thread holds row r and row r + 8"),
        (PLACE, PLACE.replace("v % 2", "v // 2 % 2"), "bit 1 of them is bit 0 of v"),
        (PLACE, PLACE.replace("lane // 4", "lane % 8"), "four threads share a row"),
        (PLACE, PLACE.replace("lane % 4", "lane // 4"), "lane % 4 picks the column"),
        (
            PLACE,
            PLACE.replace("lane % 4", "lane // 4"),
            "written more than once, such as (0, 0): by thread 0, result 0, and by thread 1",
        ),
        (PLACE, PLACE.replace("+ lane % 4", "+ 3 - lane % 4"), "one each: lane % 4. Each element has one owner in it"),
        (PLACE, PLACE.replace("4 * (v // 2)", "4 * v"), "4 * (v // 2)"),
        (PLACE, PLACE.replace("4 * (v // 2)", "4 * v"), "outside of the tile"),
        (
            PLACE,
            PLACE.replace("4 * (v // 2) + lane % 4", "v // 2 + 16 * (lane % 4)"),
            "A thread holds every fourth column",
        ),
        (PLACE, PLACE.replace("v // 2)", "v / 2)"), "as plain integers"),
        (PARTNERS, "    gate, up = 2 * v, 2 * v + 1\n", "Neighbours are gate and up where rows alternate"),
        (PARTNERS, "    up = 2 * (v // half) * half + v % half\n    gate = up + half\n", "Gate and up are exchanged"),
        (PARTNERS, "    gate, up = v, v + half\n", "right in the first block only"),
        (PARTNERS, "    gate, up = v, v + half\n", "accumulator 4 is in results 0 and 4"),
        ("half = block // 2", "half = block", "a thread has block / 2 values of it"),
        ("up = gate + half", "up = gate + 2 * half", "Up's lies one block further"),
        ("up = gate + half", "up = gate + 2", "Up's lies one block further"),
        (
            PARTNERS,
            PARTNERS.replace("2 * (v // half) * half + v % half", "8 * (v // 4) + v % 4"),
            "is the block of a result",
        ),
        ("up = gate + half", "up = float(gate + half)", "as plain integers"),
    ],
}
