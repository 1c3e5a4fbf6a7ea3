"""Several instances in SIMD lanes beside one at a time."""

from __future__ import annotations

import pytest
import torch
from tolerances import CERTIFIED, DOUBLE, VALUE
from zoo import MODELS, SETS, shaken

from soctk.decide.compiled import solve
from soctk.decide.newton import DEFAULT_ITERATIONS
from soctk.simd.lanes import WIDTH


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("model_name", [name for name in MODELS if name not in ("relu", "affine", "ickan")])
def test_several_in_lanes_take_the_steps_of_one(model_name: str, set_name: str, monkeypatch) -> None:
    """Where rounding does not decide which vertex comes first: not for linear programs.

    More instances than lanes, whose iterations differ, so that lanes are filled again and the last stay empty.
    """
    model, feasible_set = shaken(MODELS[model_name](6)), SETS[set_name](6)
    context = torch.randn(5 * WIDTH + 3, 3, generator=torch.Generator().manual_seed(8), dtype=DOUBLE)
    form, results = model.conic_form(context).detach(), []
    for fewest in (1, 10**9):
        monkeypatch.setattr(solve, "FEWEST_IN_LANES", fewest)
        results.append(
            solve.solve_compiled(form, solve.Region.of(feasible_set), tol=CERTIFIED, max_iter=DEFAULT_ITERATIONS)
        )
    several, one = results
    assert (several.status == "optimal").all()
    assert (one.status == "optimal").all()
    assert float((several.iterations - one.iterations).abs().double().mean()) <= 0.05
    torch.testing.assert_close(several.value, one.value, rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
