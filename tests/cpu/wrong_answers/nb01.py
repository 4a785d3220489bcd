"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

WRONG = {
    "01a": [
        ("128 * (m // 64)", "0 * (m // 64)", "Each warp group owns 64 rows"),
        ("32 * (m % 64 // 16)", "32 * (m % 4)", "Each warp owns 16 rows"),
        ("4 * (m % 8)", "4 * (m % 16 // 2)", "row r and row r + 8 belong to the same four threads"),
        ("n // 2 % 4", "n % 4", "pairs of neighbouring columns"),
        ("value = n % 2", "value = n // 2 % 2", "neighbouring values: n % 2"),
        ("2 * (m // 8 % 2)", "0 * (m // 8 % 2)", "two values on"),
        ("4 * (n // 8)", "2 * (n // 8)", "Each further 8 columns add 4 values"),
    ],
    "01b": [
        ("chunk = k // 8 ^ row % 8", "chunk = k // 8", "plain row-major place"),
        ("chunk = k // 8 ^ row % 8", "chunk = k // 8 ^ (row + 1) % 8", "XOR (row % 8)"),
        ("chunk = k // 8 ^ row % 8", "chunk = k // 8 & row % 8", "both lie at byte"),
        ("128 * row", "64 * row", "both lie at byte"),
        ("2 * (k % 8)", "2 * ((k ^ 1) % 8)", "inside a chunk"),
    ],
}
