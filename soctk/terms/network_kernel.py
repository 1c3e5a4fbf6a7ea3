"""The network in compiled code (`soctk.terms.kernel`).

t.a (preactivations), t.z (activations), t.p (slopes), t.nubar and t.y = nu go layer by layer, as t.u does; of a ReLU
t.inverse is 1 / r.
"""

from __future__ import annotations

import numpy as np

from soctk.simd import add_gram, add_product, add_rows, choose, fill, sum_of, view
from soctk.terms.base import SMALLEST_WEIGHT
from soctk.terms.kernel import TINY, Kernel
from soctk.terms.logistic import entropy, softplus


def value(t, mu, reference):
    """Return c'z_L, every ReLU smoothed: (a + r) / 2, r = sqrt(a^2 + 4 delta^2), delta = 2 mu / nubar."""
    start, inner, at, total, weights = 0, 0, 0, 0.0, t.weights
    delta = 2 * mu / reference
    for level in range(t.widths.size):
        width = t.widths[level]
        a, z, p = view(t.a, start, width), view(t.z, start, width), view(t.p, start, width)
        for k in range(width):
            a[k] = t.u[start + k]
        if level > 0:
            add_rows(a, view(t.z, start - inner, inner), inner, t.mixing_transposed, at, width)
            at += inner * width
        if t.softplus != 0:
            for k in range(width):
                z[k], p[k] = softplus(a[k])
        else:
            smooth_relus(a, view(t.inverse, start, width), z, p, delta)
        start, inner = start + width, width
    last = view(t.z, start - inner, inner)
    for k in range(inner):
        total += weights[k] * last[k]
    return total


def smooth_relus(a, inverse, z, p, delta):
    """Fill 1 / r, the units and their slopes."""
    spread = 4 * delta * delta
    for k in range(a.size):
        # (a + r) / 2 loses all digits for very negative a; delta^2 / ((|a| + r) / 2) does not.
        r = np.sqrt(a[k] * a[k] + spread)
        half = 0.5 * (r + abs(a[k]))
        both = 1 / max(half * r, TINY)
        inverse[k] = half * both
        z[k] = choose(a[k] > 0, half, delta * delta * (r * both))
        p[k] = min(z[k] * inverse[k], 1.0)  # no slope is above 1 by rounding: bounds are made of it


def chain(t):
    """Fill nu (in y) and nubar from the slopes p: nu_l = nubar_l p_l, nubar_{l-1} = U_l'nu_l."""
    layers, stop, at, weights = t.widths.size, t.rows, t.mixing.size, t.weights
    width = t.widths[layers - 1]
    last = view(t.nubar, stop - width, width)
    for k in range(width):
        last[k] = weights[k]
    for level in range(layers - 1, -1, -1):
        width = t.widths[level]
        stop -= width
        nubar, p, y = view(t.nubar, stop, width), view(t.p, stop, width), view(t.y, stop, width)
        for k in range(width):
            y[k] = nubar[k] * p[k]
        if level > 0:
            inner = t.widths[level - 1]
            at -= inner * width
            below = view(t.nubar, stop - inner, inner)
            fill(below, 0.0)
            add_rows(below, y, width, t.mixing, at, inner)


def conjugate(t):
    """Return -sum nubar'H(p), 0 for the ReLU."""
    total, nubar, p = 0.0, t.nubar, t.p
    if t.softplus != 0:
        for k in range(t.rows):
            total -= nubar[k] * entropy(p[k])
    return total


def reference(t):
    """Return the largest mean of nubar over the layers when every unit is active."""
    largest, start = SMALLEST_WEIGHT, 0
    if t.softplus != 0:
        return largest
    fill(t.p, 1.0)
    chain(t)
    for level in range(t.widths.size):
        width = t.widths[level]
        largest = max(largest, sum_of(view(t.nubar, start, width)) / width)
        start += width
    return largest


def curvature(t, out):
    """Fill nubar k."""
    a, inverse, p, nubar, lag = t.a, t.inverse, t.p, t.nubar, t.lag
    if t.softplus != 0:
        for k in range(t.rows):
            out[k] = nubar[k] * p[k] * (1 - p[k])
    else:
        for k in range(t.rows):
            out[k] = nubar[k] * (1 - lag[k] * a[k] * inverse[k]) * (0.5 * inverse[k])


def add_inner(t, curvature, total, jacobians, scratch):
    """Add J_l' diag(nubar_l k_l) J_l for l > 1: J_1 = W_1, J_l = W_l + U_l diag(p_{l-1}) J_{l-1}."""
    n, start, at, half = t.n, 0, 0, jacobians.size // 2
    for level in range(1, t.widths.size):
        inner, width = t.widths[level - 1], t.widths[level]
        p, here, below = view(t.p, start, inner), level % 2 * half, (level - 1) % 2 * half
        start += inner
        out, own = view(jacobians, here, width * n), view(t.A, start * n, width * n)
        for i in range(width * n):
            out[i] = own[i]
        if level == 1:
            add_product(out, width, n, t.mixing, at, inner, p, t.A, 0, scratch)
        else:
            add_product(out, width, n, t.mixing, at, inner, p, jacobians, below, scratch)
        add_gram(total, n + 2, n, view(curvature, start, width), width, jacobians, here, scratch)
        at += inner * width


def initial_lag(t, out):
    """Fill a / r."""
    if t.softplus == 0:
        for k in range(t.rows):
            out[k] = t.a[k] * t.inverse[k]


def advance_lag(t, du, scratch):
    """Fill t <- a / r + (1 - t a / r) / r da, clipped to [-1, 1]; da = du + U (p da of the layer below)."""
    start, inner, at = 0, 0, 0
    for level in range(t.widths.size if t.softplus == 0 else 0):
        width = t.widths[level]
        da, lag, p = view(scratch, start, width), view(t.lag, start, width), view(t.p, start, width)
        a, inverse = view(t.a, start, width), view(t.inverse, start, width)
        for k in range(width):
            da[k] = du[start + k]
        if level > 0:
            add_rows(da, view(scratch, start - inner, inner), inner, t.mixing_transposed, at, width)
            at += inner * width
        for k in range(width):
            share = a[k] * inverse[k]
            lag[k] = min(max(share + (1 - lag[k] * share) * inverse[k] * da[k], -1.0), 1.0)
            da[k] *= p[k]
        start, inner = start + width, width


def lagged_dual(t):
    """Fill the chain of the slopes (1 + t) / 2."""
    if t.softplus == 0:
        for k in range(t.rows):
            t.p[k] = 0.5 * (1 + t.lag[k])
        chain(t)


KERNEL = Kernel(value, chain, conjugate, curvature, reference, None, add_inner, initial_lag, advance_lag, lagged_dual)
