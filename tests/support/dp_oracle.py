"""The accounting compared with Google's dp-accounting, which needs an environment of its own because of its pins.

python -m venv oracle && oracle/bin/pip install dp-accounting
PYTHONPATH=src:tests oracle/bin/python -m support.dp_oracle
"""

from dmtrl.federation.protection.noise.accounting import epsilon_of, total_mu

SIGMAS, COUNTS, DELTAS = (0.6, 1.0, 2.0, 5.0, 20.0), (1, 4, 20), (1e-7, 1e-5, 1e-3)


def largest_difference() -> float:
    """The largest difference of epsilon over a grid of noise, numbers of releases and delta, relative above 1."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    worst = 0.0
    for sigma in SIGMAS:
        for count in COUNTS:
            accountant = PLDAccountant()
            accountant.compose(dp_accounting.GaussianDpEvent(sigma), count)
            for delta in DELTAS:
                ours, theirs = epsilon_of(total_mu([1 / sigma] * count), delta), accountant.get_epsilon(delta)
                worst = max(worst, abs(ours - theirs) / max(theirs, 1.0))
                print(f"sigma {sigma:4g}  releases {count:2d}  delta {delta:g}  {ours:.5f}  {theirs:.5f}")
    return worst


if __name__ == "__main__":
    print(f"largest difference: {largest_difference():.2g}")
