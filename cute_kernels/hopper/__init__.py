"""SM90 (Hopper) kernels and the parts they share, in the order in which the notebooks teach them.

tiles      notebooks 01, 02: tiled MMA, swizzled shared-memory layouts, TMA load atoms
mainloop   notebooks 03, 04: the ring of stages, its producer and its consumer
activation the SiLU that the fused kernels apply to the accumulator
epilogue   accumulator -> stmatrix -> swizzled shared memory -> TMA store
scheduler  which tile a CTA works on next, and in which order
config     tile configurations: they enumerate, validate and explain themselves
kernel     the warp-specialised skeleton that the finished kernels fill in
gemm, swiglu_stacked   the finished kernels
"""
