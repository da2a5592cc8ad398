"""Facts of imagined jobs."""

from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, LinkFacts, StepFacts

MBIT = 1e6 / 8
GRADIENTS = {
    "table.weight": GradientFacts(
        name="table.weight",
        kind="row-sparse",
        shape=(50_000, 200),
        density=0.022,
        densification={"2": 1.8, "4": 3.3, "8": 5.9},
        skewness=5.0,
        overlap=0.2,
    ),
    "lstm.weight": GradientFacts(name="lstm.weight", kind="dense", shape=(800, 400)),
    "lstm.bias": GradientFacts(name="lstm.bias", kind="dense", shape=(800,)),
}
ALL_GRADIENTS = tuple(GRADIENTS.values())
STEP = StepFacts(compute_s=0.25, backward_s=0.15, samples=32)


def independent(size, density, *, shape=(100_000, 1), kind="element-sparse", name="x"):
    """Describe a gradient whose workers choose rows independently of each other."""
    gammas = {k: (1 - (1 - density) ** k) / density for k in {1, 2, 4, 8, 16, 32, size} if k <= size}
    return GradientFacts(
        name=name,
        kind=kind,
        shape=shape,
        density=density,
        densification={str(k): gamma for k, gamma in gammas.items()},
        overlap=density,
    )


def job(
    size=8,
    bytes_per_s=100 * MBIT,
    *,
    latency_s=3e-4,
    gradients=ALL_GRADIENTS,
    step=STEP,
    merge_bytes_per_s=1.5e9,
    merge_rows_per_s=2e7,
    copy_bytes_per_s=5e9,
    slow=None,
    code_rows_per_s=None,
    code_part_s=0.0,
    per_s=None,
):
    """Describe a job of equal devices and links; ``slow`` maps pairs to another bandwidth.

    Without ``code_rows_per_s`` (values are coded as fast) the price of coding was not measured, without ``per_s``
    that of selecting and quantising.
    """
    return Facts(
        torch_version="2.13.0",
        world_size=size,
        model_digest="abcd",
        devices=[
            DeviceFacts(
                rank=r,
                host=f"host{r}",
                device="cpu",
                name="a processor",
                cores=1,
                memory_bytes=2**33,
                merge_bytes_per_s=merge_bytes_per_s,
                merge_rows_per_s=merge_rows_per_s,
                copy_bytes_per_s=copy_bytes_per_s,
                code_rows_per_s=code_rows_per_s,
                code_values_per_s=code_rows_per_s,
                code_part_s=code_part_s,
                code_values_part_s=code_part_s,
                select_elements_per_s=per_s,
                quantise_elements_per_s=per_s,
            )
            for r in range(size)
        ],
        links=[
            LinkFacts(
                source=a, dest=b, latency_s=latency_s, bandwidth_bytes_per_s=(slow or {}).get((a, b), bytes_per_s)
            )
            for a in range(size)
            for b in range(size)
            if a != b
        ],
        gradients=list(gradients),
        step=step,
    )
