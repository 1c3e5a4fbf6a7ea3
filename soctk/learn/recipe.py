"""The recipe: which phases a surrogate is trained by, in which order, with which options.

    a dense model               Race(Adam, Curved)                  Refine(Curved, Curved, Reduce, Grow, Slope,
                                                                           Everything, Level)
    of few candidates           Race(Adam, Everything, Everything)  Refine(Everything, Everything, Level)
    one without b0 and v apart  Race(Adam, Everything)              Refine(Everything)
    branches over windows       Race(StructuredStart, Everything)   Refine(Everything), both in whitened coordinates

With more than `BEFORE_REDUCING` steps of L-BFGS those that are left follow Reduce, as a Curved of their own. Without
structures to choose from there is neither Reduce nor Grow, and without hyperbolic branches no Grow. With
`FitConfig.context_units` Slope and Everything are in `Bend`, which runs them twice: as they are, and once offsets and
weights bend with the context. Before the larger structures of a dense model come those with one centre (`OneCentre`),
where the fit ends if the data do not ask for more; and `KnownOptima` where there are any. Where values are steep all
of it is in `Focused`, without a focus and with one, and where few values tell with one both projecting, with v affine
in the context, and not. With one start and one structure there is no race.
`print(recipe_for(...))` shows a model's; `FitConfig` holds every number and a switch for every part.
"""

from __future__ import annotations

import math
from dataclasses import replace

from soctk.learn.config import FitConfig
from soctk.learn.optimality import Optima
from soctk.learn.optimizers import LBFGS, LevenbergMarquardt, Optimizer, Suited
from soctk.learn.phases.adam import Adam
from soctk.learn.phases.bend import Bend
from soctk.learn.phases.curved import Curved
from soctk.learn.phases.everything import Everything
from soctk.learn.phases.focused import FOCUSED_PENALTY, Focused
from soctk.learn.phases.grow import Grow
from soctk.learn.phases.known_optima import KnownOptima
from soctk.learn.phases.level import Level
from soctk.learn.phases.one_centre import OneCentre
from soctk.learn.phases.own import Own
from soctk.learn.phases.phase import Phase
from soctk.learn.phases.race import Race, can_redraw
from soctk.learn.phases.reduce import Reduce
from soctk.learn.phases.refine import Refine
from soctk.learn.phases.slope import Slope
from soctk.learn.phases.structured_start import StructuredStart, can_place
from soctk.learn.residuals import can_project, projected_share
from soctk.surrogate import ConvexSurrogate

RACE_SHARE = 0.6
"""The share of a phase's iterations, on half the rows, that every start gets before the best goes on."""
AFTER_RACE_SHARE = 0.5
"""The share of the Levenberg-Marquardt steps that the best start then gets, still on half the rows."""
STANDING_IN = 3
"""L-BFGS takes this many times its steps where starts and structures are compared and Levenberg-Marquardt would suit
the curved part but for the number of its weights: about as much work as that is with fewer weights. With fewer steps a
large structure has not shown yet what it can do when it is compared with smaller ones."""
BEFORE_NEWTON_SHARE = 0.25
"""The share of AdamW's passes where Levenberg-Marquardt on the curved part follows, which needs but a start."""
LATER_PENALTY = 1e-3
"""Branches over windows are fitted once more with this share of the penalty, which by then is what holds them up."""

REDUCE_ROWS = 9_600
"""Observed values that tell what a structure does not need, if not more are needed for its weights: there are many
steps, and the function itself, where it is found, is found from few."""

BEFORE_REDUCING = 300
"""Iterations of L-BFGS before `Reduce`; the others follow it. After more of them branches that the data do not need
have found something small to fit, and are no longer left out."""

GROWN, GROWN_STARTS = 300, 2
"""Iterations of L-BFGS with more branches, and draws of these that are tried."""
GROWN_SHARE = 2.0
"""Of the Levenberg-Marquardt steps of a phase, from the best draw before L-BFGS."""

BENT, BENT_STARTS = 300, 2
"""Iterations of L-BFGS with units of the context, and draws of these that are tried."""
BENT_STEPS, BENT_LAST_STEPS = 30, 20
"""Levenberg-Marquardt steps from every draw, and from the best one before L-BFGS."""

LEVEL_PATIENCE = 3
"""L-BFGS on b0 alone, which is cheap, is given this many times as long to improve."""

Recipe = tuple[Phase, ...]


def recipe_for(
    model: ConvexSurrogate,
    config: FitConfig,
    candidates: int,
    known: Optima | None = None,
    instances: int | None = None,
    *,
    steep: bool = False,
    effective: float | None = None,
) -> Recipe:
    """Return the phases that `soctk.fit` trains a surrogate by.

    Args:
        model: the surrogate.
        config: numbers and switches.
        candidates: observed values of an instance, the fewest of training and validation data.
        known: optimal decisions, where there are any.
        instances: of the training data; None for as many as any phase wants.
        steep: whether to learn with a focus as well (`soctk.learn.phases.focused.can_compare`). AdamW has none, nor
            have branches over windows.
        effective: candidates of equal weight that tell as much as an instance's, with the focus that there is or that
            steep values are learned with as well; None for all of them.
    """
    if model.traits.own is not None:
        return (Own(model.traits.own),)
    effective = candidates if effective is None else effective
    recipe = _Maker(model, config, candidates, instances, candidates if steep else effective).recipe(known)
    second_order = config.lbfgs_iterations + config.newton_iterations > 0
    if not (steep and second_order and model.traits.windowed is None):
        return recipe
    weighed = replace(config, penalty=max(config.penalty, FOCUSED_PENALTY))
    tries = ((effective, False), (candidates, True))
    makers = [_Maker(model, weighed, candidates, instances, tell, affine=affine) for tell, affine in tries]
    if makers[0].apart == makers[1].apart:
        del makers[1]
    return (Focused(recipe, tuple(maker.recipe(known) for maker in makers)),)


def _projected_rows(model: ConvexSurrogate, config: FitConfig, candidates: int, instances: int | None) -> int:
    """Return how many observed values tell the weights of the curved part.

    The weights of all structures count: structures are compared on the same values. No more than there are, so that
    half of them are half of the data.
    """
    share = projected_share(candidates, model.dim)
    affine = model.traits.affine
    weights = sum(weight.numel() for weight in model.parameters())
    weights -= 0 if affine is None else sum(weight.numel() for weight in affine.parameters())
    wanted = math.ceil(config.values_per_weight * weights * share / (share - model.dim - 1))
    return wanted if instances is None else min(wanted, instances * share)


class _Maker:
    """Makes the phases of one recipe."""

    def __init__(
        self,
        model: ConvexSurrogate,
        config: FitConfig,
        candidates: int,
        instances: int | None,
        effective: float,
        *,
        affine: bool = False,
    ) -> None:
        traits, self.affine = model.traits, affine
        self.config, self.windowed, self.units = config, traits.windowed, traits.units
        self.whitened = config.structured and self.windowed is not None and len(self.windowed.branches) > 0
        self.apart = config.project_affine and can_project(model, effective)
        part = traits.affine
        waits = part is not None and part.conditioned and self.windowed is None and len(part.network_parameters()) > 0
        # A single value of an instance tells of v only together with all others: there they are learned with the rest.
        self.few = config.project_affine and waits and not self.apart and candidates > 1
        self.regressed = config.level_regression and traits.affine is not None
        # Single values, of training or of validation data, have no variation within an instance: they count whole.
        self.level_weight = 1.0 if candidates == 1 else 0.0 if self.regressed else config.level_weight
        newton = config.newton_iterations > 0 and config.optimizer != "lbfgs" and traits.gauss_newton
        self.newton_follows = self.apart and newton and model.parameter_count <= config.newton_weights
        self.standing_in = STANDING_IN if self.apart and newton else 1
        needed = _projected_rows(model, config, candidates, instances) if self.apart else 0
        self.rows, self.reduce_rows = max(config.rows, needed), max(min(config.rows, REDUCE_ROWS), needed)
        self.starts = config.starts if can_redraw(model) else 1
        self.structures = traits.structures if config.choose_structure else 1
        resized = self.structures > 1 and self.apart and newton and config.optimizer == "auto"
        self.reduced = config.reduce and resized
        self.grown = config.grow and resized and traits.set_branches is not None

    def recipe(self, known: Optima | None) -> Recipe:
        config, begin = self.config, self.begin()
        several = self.starts * self.structures > 1
        second_order = config.lbfgs_iterations + config.newton_iterations > 0
        refine: Recipe = (Refine(self.refine()),) if second_order else ()
        optima: Recipe = (self.known_optima(known),) if known is not None and config.optima_iterations > 0 else ()
        if not several or not (begin or second_order):
            return (*begin, *refine, *optima)
        if not config.race:
            return (self.race(begin, refine), *optima)
        brief: Recipe = self.shape(RACE_SHARE, 2) if second_order else ()
        return (self.race(begin, brief), *refine, *optima)

    def race(self, begin: Recipe, then: Recipe) -> Race:
        grown = then if self.whitened else None
        centred = OneCentre(self.config.rows, self.config.level_weight, self.config.seed)
        all_go_on = self.whitened or not self.config.race or len(begin) == 0
        keep = self.starts if all_go_on else math.ceil(self.starts / 2)
        contest = self.apart and self.config.race
        return Race(self.starts, keep, self.structures, (*begin, *then), grown, centred, contest)

    def begin(self) -> Recipe:
        """Return the first phase: where branches over windows are placed, AdamW elsewhere."""
        config = self.config
        if self.whitened and self.windowed is not None and can_place(self.windowed):
            return (StructuredStart(config.rows, self.level_weight, config.seed),)
        if config.epochs == 0:
            return ()
        epochs = math.ceil(BEFORE_NEWTON_SHARE * config.epochs) if self.newton_follows else config.epochs
        step = (epochs, config.learning_rate, config.weight_decay, config.batch_rows, config.clip)
        return (Adam(*step, self.level_weight, config.seed),)

    def shape(self, share: float, part: int = 1) -> Recipe:
        """Return the phases for the curved part: alone, or with all other weights, networks last.

        Args:
            share: of the iterations.
            part: what the rows are divided by.
        """
        rows = self.rows // part
        if self.apart:
            return (Curved(self.suited(share, self.config.penalty), rows),)
        if self.whitened:
            return (Everything(self.in_turn(share), rows, self.level_weight, whitened=True),)
        optimizers = (self.suited(share, self.config.penalty),)
        if not self.few:
            return (Everything(optimizers, rows, self.level_weight),)
        return (Everything(optimizers, rows, self.level_weight, networks=False), self.polish(share, rows))

    def polish(self, share: float, rows: int) -> Everything:
        """Return the phase for all weights from where those of the curved part have their place."""
        newton = self.config.optimizer == "levenberg_marquardt"
        optimizer = self.newton(share, 0.0) if newton else self.lbfgs(share)
        return Everything((optimizer,), rows, self.level_weight, networks=not self.affine)

    def refine(self) -> Recipe:
        if self.apart:
            phases: Recipe = (
                *self.curved(),
                *self.bend((Slope(affine=self.affine), self.polish(1.0, self.config.rows))),
            )
        else:
            phases = (*self.shape(1.0), *self.bend(()))
        return (*phases, self.level()) if self.regressed else phases

    def curved(self) -> Recipe:
        """Return the phases for the curved part of the best start: Levenberg-Marquardt, then L-BFGS on all rows.

        The first finds which branch takes which kink, which the second does not; the second goes on from there without
        the penalty, in far cheaper steps. What the structure does not need is left out after the first of these, and
        what it lacks is added in the end.
        """
        config = self.config
        if config.optimizer != "auto":
            return self.shape(1.0)
        first = Curved(Suited(self.newton(AFTER_RACE_SHARE, config.penalty), config.newton_weights), self.rows // 2)
        larger = (self.grow(),) if self.grown else ()
        if not self.reduced:
            return (first, Curved(self.lbfgs(1.0), self.rows), *larger)
        early, smaller = min(BEFORE_REDUCING, config.lbfgs_iterations), Reduce(self.reduce_rows, config.penalty)
        late = config.lbfgs_iterations - early
        others = (Curved(self.lbfgs_steps(late), self.rows),) if late > 0 else ()
        return (first, Curved(self.lbfgs_steps(early), self.rows), smaller, *others, *larger)

    def grow(self) -> Grow:
        config = self.config
        draw = Curved(self.newton(1.0, config.penalty), self.rows // 2)
        methods = self.newton(GROWN_SHARE, config.penalty), self.lbfgs_at_most(GROWN)
        then = tuple(Curved(method, self.rows) for method in methods)
        follow = (Slope(affine=self.affine), *((self.level(),) if self.regressed else ()))
        return Grow(GROWN_STARTS, draw, then, follow, config.rows, config.newton_weights)

    def bend(self, after: Recipe) -> Recipe:
        """Return the phases that follow the curved part, with offsets and weights that bend with the context if asked.

        Args:
            after: those that follow whether they bend or not.
        """
        config, units = self.config, self.units
        if units is None or units.context_dim == 0 or units.count > 0 or config.context_units == 0:
            return after
        longer = self.lbfgs_at_most(BENT)
        draw = Suited(LevenbergMarquardt(BENT_STEPS, config.penalty), config.newton_weights, longer)
        last = Suited(LevenbergMarquardt(BENT_LAST_STEPS, config.penalty), config.newton_weights)
        then = self.with_units(last), self.with_units(longer), *([self.polish(1.0, self.rows)] if self.few else [])
        sizes = config.context_units, BENT_STARTS
        return (Bend(*sizes, self.with_units(draw), then, after, self.rows, self.level_weight),)

    def with_units(self, method: Optimizer) -> Phase:
        """Return the phase that hidden units of the context are learned by."""
        if self.apart:
            return Curved(method, self.rows)
        return Everything((method,), self.rows, self.level_weight, networks=not self.few)

    def level(self) -> Level:
        config = self.config
        patience = LEVEL_PATIENCE * config.patience
        return Level(LBFGS(config.level_iterations, config.history, config.validate_every, patience))

    def known_optima(self, known: Optima) -> KnownOptima:
        config = self.config
        steps = LBFGS(config.optima_iterations, config.history, config.validate_every, config.patience)
        level = self.level() if self.regressed else None
        return KnownOptima(known, config.optima_weights, steps, config.rows, self.level_weight, level, config.seed)

    # -- methods ---------------------------------------------------------------------------------------

    def lbfgs(self, share: float) -> LBFGS:
        return self.lbfgs_steps(math.ceil(share * self.config.lbfgs_iterations))

    def lbfgs_at_most(self, count: int) -> LBFGS:
        return self.lbfgs_steps(min(count, self.config.lbfgs_iterations))

    def lbfgs_steps(self, count: int) -> LBFGS:
        return LBFGS(count, self.config.history, self.config.validate_every, self.config.patience)

    def newton(self, share: float, penalty: float) -> LevenbergMarquardt:
        return LevenbergMarquardt(math.ceil(share * self.config.newton_iterations), penalty)

    def suited(self, share: float, penalty: float) -> Optimizer:
        """Return Levenberg-Marquardt for few weights, L-BFGS for many, or the one asked for."""
        newton = self.newton(share, penalty)
        chosen = {"levenberg_marquardt": newton, "lbfgs": self.lbfgs(share)}
        return chosen.get(self.config.optimizer) or Suited(
            newton, self.config.newton_weights, self.lbfgs(self.standing_in * share)
        )

    def in_turn(self, share: float) -> tuple[Optimizer, ...]:
        """Return both in turn: after the structured start Levenberg-Marquardt alone stays damped."""
        config = self.config
        newton = [self.newton(share, penalty) for penalty in (config.penalty, LATER_PENALTY * config.penalty)]
        if config.optimizer == "levenberg_marquardt":
            return tuple(newton)
        suited = [Suited(each, config.newton_weights) for each in newton] if config.optimizer == "auto" else []
        return (self.lbfgs(share), *suited)
