"""What `soctk fit`, `soctk assess` and `soctk decide` take: from a file of logged decisions to new ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class Feasible:
    """Where decisions may be.

    Attributes:
        set: simplex {x >= 0, sum(x) = total}, box {lower <= x <= upper}, budget, a box with sum(x) = total, or a file
            of {lower <= x <= upper, E x = f, G x <= h}: a .json object with lists under these names, E and G lists
            of rows, or an .npz file with arrays. E with f and G with h may be left out, f and h where columns give
            them; lower and upper are a number or one for each coordinate, null in JSON where there is no bound, 0 and
            no bound by default.
        total: of a simplex or budget; 1 by default for a simplex.
        lower: of a box or budget, one number or one for each coordinate; 0 by default.
        upper: likewise; 1 by default.
        total_column: a column of the contexts' file (of the log for `soctk fit` and `soctk assess`) with the total, so
            that each row has a set of its own; it may be a column of the context too. Of an .npz file an array (N,), or
            NAME_0, NAME_1 and so on of an array NAME (N, any).
        lower_columns: likewise one column with lower bounds, or one for each coordinate.
        upper_columns: the same with upper bounds.
        equality_columns: one column for each row of E: f.
        rhs_columns: one column for each row of G: h; a column may be named more than once.
    """

    set: str | None = None
    total: float | None = None
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    total_column: str | None = None
    lower_columns: tuple[str, ...] = ()
    upper_columns: tuple[str, ...] = ()
    equality_columns: tuple[str, ...] = ()
    rhs_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """Learn a convex surrogate from logged decisions and their values, and save it.

    A table (.csv, .parquet) has a row for each decision. An .npz file has arrays context (N, p), x (N, M, n),
    value (N, M) and optionally optimum (N, n). A fifth of the contexts is held out to measure the error. Ctrl-C ends
    the fit and saves the best state so far; a second one ends the command at once.

    Attributes:
        data: the file.
        context: columns of the context, by their names in the file: numbers are taken as they are, texts as categories,
            dates by hour of day, weekday and time of year as far as the log spans these; context_* by default.
        decision: columns of the decision, numbers; x_* by default.
        value: column of the cost that the decision had; of a profit the negative.
        optimum: columns of an optimal decision in that context, in the decision's order; optimum_* by default, where
            there are any.
        category: columns of the context that are categories although they have numbers.
        date_format: of dates that are not in ISO 8601, as "%d.%m.%Y %H:%M".
        drop_missing: leave rows with missing values out, and say how many and which come first.
        model: name of the surrogate.
        output: the model's file; the data's name with .safetensors by default.
        max_parameters: the most weights the model may have.
        members: models to learn from samples of the rows, whose mean is saved (bagging); side by side, in processes
            of this machine or on a cluster.
        context_units: hidden units of the context to try for coefficients nonlinear in it, 16 for instance; kept
            where held-out values ask for them.
        seed: of the initial weights and of what is held out.
        time_limit: seconds for the fit.
        feasible: what the optima are optimal in; by default the smallest box that holds them, with their common sum.
        scheduler: address of a dask cluster's scheduler, as tcp://host:8786, whose workers learn the members; they need
            no files.
    """

    data: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    context: tuple[str, ...] | None = None
    decision: tuple[str, ...] | None = None
    value: str = "value"
    optimum: tuple[str, ...] | None = None
    category: tuple[str, ...] = ()
    date_format: str | None = None
    drop_missing: bool = False
    model: str = "soc"
    output: Path | None = None
    max_parameters: int | None = None
    members: int = 1
    context_units: int = 0
    seed: int = 0
    time_limit: float | None = None
    scheduler: str | None = None


@dataclass(frozen=True)
class Assess:
    """Measure on logged decisions how far a saved surrogate can be trusted: errors, costs at its decisions, regret.

    Of the log that the model was learned from by `soctk fit`, the rows that were held out are taken, and the
    least-squares quadratic beside it learns from those that the model had. Another log is taken whole; where it is of
    a later period, or of other places, give the log that the model was learned from too: without it the quadratic
    learns from rows of the log that it is compared on, and knows what is new there.

    Attributes:
        model: a file that `soctk fit` or `soctk.save` wrote.
        log: logged decisions, with the columns that the model was learned from.
        train: the log that the model was learned from, where `log` is another one.
        feasible: where the model is to decide; by default the smallest box around the logged decisions, with their
            common sum where they have one.
        output: where to write a page (.html) with pictures, which needs no other file and no network.
        drop_missing: leave rows with missing values out.
    """

    model: tyro.conf.Positional[Path]
    log: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    train: Path | None = None
    output: Path | None = None
    drop_missing: bool = False


@dataclass(frozen=True)
class Decide:
    """Decide with a saved surrogate, every decision with a certified optimality gap.

    Tables are read, decided and written in pieces, so that they may be larger than memory. What an interruption leaves
    is kept beside the output; the same command goes on from there. Exits with 1 where a decision is not certified, or
    the set is empty.

    Attributes:
        model: a file that `soctk fit` or `soctk.save` wrote.
        contexts: .csv or .parquet with the columns of the context that the model was learned from, a folder of such
            .parquet files, or .npz with an array context (N, p);
            left out where the model takes none and no right-hand side is a column.
        feasible: where to decide.
        output: the decisions' file, .csv, .parquet or .npz, or the name of a new folder, for a .parquet file of each
            piece, in the order of their names; the model's name with .decisions.csv by default.
        keep: columns of the contexts' file to copy beside the decisions, such as a date; of a .csv file as text.
        rows_at_once: contexts of a piece.
        tol: the gap to reach, relative to max(1, |value|), or in units of the scale.
        scale: the unit that gaps are measured in, such as the standard deviation of the values in question.
        time_limit: seconds for all decisions.
        prices: write the derivatives of the value in the right-hand sides: price_NAME for a column NAME that they are
            from (the rows that share it together), else price_total, price_f_0, price_h_0 and so on, and
            price_lower_NAME and price_upper_NAME of the variables.
        infeasible: where the set is empty, "status" leaves the decision out; "nearest" decides over the set with its
            rows moved as little as need be, and writes by how much in all (relaxation).
        integer: columns of the decision that have to be whole numbers; "all" for all of them.
        scheduler: address of a dask cluster's scheduler, as tcp://host:8786, whose workers decide .parquet contexts;
            they must see all files under the same names.
    """

    model: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    contexts: tyro.conf.Positional[Path | None] = None
    output: Path | None = None
    keep: tuple[str, ...] = ()
    rows_at_once: int = 50_000
    tol: float = 1e-6
    scale: float | None = None
    time_limit: float | None = None
    prices: bool = False
    infeasible: Literal["status", "nearest"] = "status"
    integer: tuple[str, ...] | None = None
    scheduler: str | None = None
