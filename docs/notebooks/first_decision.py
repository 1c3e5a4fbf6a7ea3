# %% [markdown]
# # The first decision
#
# Three suppliers share an order. What an order cost is known for decisions that
# were made; from these a convex cost is learned, and the best shares are decided
# for a new day, with a certificate of how far from the best they can be.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import soctk

generator = torch.Generator().manual_seed(0)
shares = soctk.Simplex(3)  # x >= 0, sum(x) = 1

# %% [markdown]
# ## Data
#
# 100 days with two numbers each (the price of gas, the load), and sixteen
# decisions a day. The formula stands for what you have observed; it is used once
# more at the end, to judge.


# %%
def cost(x, context):  # (..., 3), (..., 2) -> (...)
    wanted = torch.stack([0.4 + 0.1 * context[..., 0], 0.3 - 0.1 * context[..., 1]], dim=-1)
    return 5 + (x[..., :2] - wanted).norm(dim=-1) + 2 * x[..., 2] ** 2


context = torch.randn(100, 2, generator=generator, dtype=torch.float64)
x = shares.sample((100, 16), generator)
data = soctk.ValueData(context, x, cost(x, context[:, None]))

# %% [markdown]
# ## Learn
#
# A quadratic and a norm of three rows each, whose weights move with the context:
# convex in x whatever they learn. `soctk.make_surrogate("soc", dim=3,
# context_dim=2)` chooses such sizes itself, and takes longer.

# %%
model = soctk.SOCICNN(3, 2, hidden=(), quadratics=(3,), norms=(3,), seed=0)
report = soctk.fit(model, data, soctk.FitConfig(starts=1))
print(f"{model.parameter_count} weights, {report.seconds:.1f} s, {report.status}")

# %% [markdown]
# ## Decide
#
# Each decision comes with a lower bound of the learned cost over the whole set:
# the gap is a proof.

# %%
tomorrow = torch.tensor([[0.5, -1.0], [-1.0, 1.0]], dtype=torch.float64)
decision = soctk.minimize(model, shares, tomorrow)
for day in range(len(tomorrow)):
    print(f"x = {decision.x[day].numpy().round(3)}, cost {decision.value[day]:.4f}, gap {decision.gap[day]:.0e}")
assert (decision.status == "optimal").all()

# %% [markdown]
# ## The certificate
#
# It can be had for any decision, wherever it comes from: `certify` says how much
# less the best one can cost at most. Here that of equal shares, which are not the
# best.

# %%
equal = torch.full((2, 3), 1 / 3, dtype=torch.float64)
checked = soctk.certify(model, shares, equal, tomorrow)
for day in range(len(tomorrow)):
    print(f"equal shares cost {checked.value[day]:.3f}, no decision less than {checked.lower_bound[day]:.3f}")
assert (checked.lower_bound <= decision.value).all()

# %% [markdown]
# ## A picture
#
# The learned cost and the true one over the simplex, for the first day: a corner
# is all from one supplier.

# %%
corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
grid = torch.tensor([[i, j, 60 - i - j] for i in range(61) for j in range(61 - i)], dtype=torch.float64) / 60
day = tomorrow[0]
values = {"learned": model(grid, day), "true": cost(grid, day)}
levels = np.linspace(float(values["true"].min()), float(values["true"].max()), 15)

figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for axis, (name, value) in zip(axes, values.items(), strict=True):
    drawn = axis.tricontourf(*(grid.numpy() @ corners).T, value.detach().numpy(), levels=levels, extend="both")
    axis.plot(*(decision.x[0].numpy() @ corners), "o", color="white", markeredgecolor="black", label="decided")
    axis.plot(*(equal[0].numpy() @ corners), "s", color="grey", markeredgecolor="black", label="equal shares")
    for number, corner in enumerate(corners):
        place = (0, -12 if corner[1] == 0 else 6)
        axis.annotate(f"supplier {number + 1}", corner, place, textcoords="offset points", ha="center")
    axis.set_title(f"{name} cost", pad=18)
    axis.set_aspect("equal")
    axis.axis("off")
figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
figure.colorbar(drawn, ax=axes, format="%.1f", shrink=0.8)
plt.show()

# %% [markdown]
# ## Judge
#
# The gap says nothing of the model. Where there is a formula, it does; elsewhere
# observations that the fit has not seen (`soctk.assess`, in the other notebook).

# %%
saved = cost(equal, tomorrow) - cost(decision.x, tomorrow)
print(f"the decisions cost {saved.numpy().round(3)} less than equal shares")
assert (saved > 0).all()
