"""Image restoration, the paper's convolutional test: a blurred photograph with holes in, an image in [0, 1]^{HxW} out.

    E(X; Y, M) = 1/(HW) [ rho/2 ||M * (H X - Y)||^2 + beta/2 ||L X||^2
                          + lambda sum over pixels of sqrt((right difference)^2 + (down difference)^2 + eps) ]

H is a 5x5 Gaussian blur, L the five-point Laplacian, both with zeros outside the image; the differences are 0 at the
last column and row; M * is the pixelwise product with the mask. The context is (Y, M), 2 HW numbers. Constants are
those of the paper's text; the mean over pixels, the 5x5 window, the boundaries and the candidates, which it leaves
open, those of its published code. Smaller images than 64x64 keep the operators and shrink the holes with the image.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk import Box, ConicForm
from soctk.checks import check_count
from soctk.maps.linear import SparseMap
from soctk.terms import Norms, Quadratic
from soctk_tasks.faces import SIDE, Faces, Source, load_faces
from soctk_tasks.stencils import gaussian_kernel, image_gradient, stencil, window_sums
from soctk_tasks.structured import StructuredTask

RHO, BETA, LAMBDA, EPSILON = 1.0, 0.035, 0.055, 1e-4
BLUR_SIGMA, BLUR_SIZE, NOISE, KEEP = 0.7, 5, 0.025, 0.90
HOLES, HOLE_SIDE = (2, 4), (8, 18)
LAPLACIAN = np.array([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
SIZES = (280, 60, 60)
CANDIDATES = 16
CANDIDATE_NOISE = 0.25


@dataclass(frozen=True, eq=False)
class Restoration(StructuredTask):
    """The image restoration task; images are flattened row by row, n = HW.

    Attributes:
        images: (400, n), the clean images over [0, 1].
        identity: which images they are, for results rows.
        size: H = W.
        blur: H.
    """

    images: Tensor
    identity: str
    size: int
    blur: SparseMap

    def draw(self, instances: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return corrupted images as contexts (N, 2 n), and the clean ones (N, n); no image twice.

        Raises:
            ValueError: more instances than images.
        """
        check_count(instances, "instances")
        (pair,) = self.draw_parts((instances,), seed)
        return pair

    def draw_parts(self, sizes: tuple[int, ...], seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return parts without a common image, split at random by image as in the paper."""
        if sum(sizes) > len(self.images):
            raise ValueError(f"instances: expected at most {len(self.images)}, the number of images, got {sum(sizes)}")
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(self.images), generator=generator)[: sum(sizes)]
        return [(self.corrupted(self.images[part], generator), self.images[part]) for part in chosen.split(sizes)]

    def corrupted(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        """Return (Y, M), (N, 2 n): blur and noise, single pixels lost, and rectangular holes."""
        noise = NOISE * torch.randn(clean.shape, generator=generator, dtype=clean.dtype)
        kept = torch.rand(clean.shape, generator=generator, dtype=clean.dtype) < KEEP
        mask = kept & ~self._holes(len(clean), generator)
        observed = (self.blurred(clean) + noise).clamp(0.0, 1.0) * mask
        return torch.cat([observed, mask.to(clean.dtype)], dim=-1)

    def _holes(self, count: int, generator: torch.Generator) -> Tensor:
        """Return where the 2 to 4 holes of each image are, bool (count, n)."""

        def whole(low: Tensor | int, high: Tensor | int, *shape: int) -> Tensor:
            share = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
            return (low + share * (high - low + 1)).floor().to(torch.int64)

        shortest, longest = (max(1, round(side * self.size / SIDE)) for side in HOLE_SIDE)
        number = whole(*HOLES, 1)
        sides = whole(shortest, longest, HOLES[1], 2)
        first = whole(0, self.size - sides, HOLES[1], 2).unsqueeze(-1)
        places = torch.arange(self.size)
        inside = (places >= first) & (places < first + sides.unsqueeze(-1))
        exists = torch.arange(HOLES[1]) < number
        covered = inside[:, :, 0, :, None] & inside[:, :, 1, None, :] & exists[:, :, None, None]
        return covered.any(dim=1).flatten(1)

    def blurred(self, images: Tensor) -> Tensor:
        """Return H X, (N, n) -> (N, n)."""
        return self.blur.forward(images.unsqueeze(1)).squeeze(1)

    def candidates(self, context: Tensor, clean: Tensor, count: int, seed: int) -> Tensor:
        """Return the published code's kinds of candidates in its order, for any count, (N, count, n)."""
        generator = torch.Generator().manual_seed(seed)
        observed = self.observation(context)
        kinds = [self._candidate(kind, observed, clean, generator) for kind in range(count)]
        return torch.stack(kinds, dim=1).clamp_(0.0, 1.0)

    def _candidate(self, kind: int, observed: Tensor, clean: Tensor, generator: torch.Generator) -> Tensor:
        def normal() -> Tensor:
            return CANDIDATE_NOISE * torch.randn(clean.shape, generator=generator, dtype=clean.dtype)

        def uniform() -> Tensor:
            return torch.rand(clean.shape, generator=generator, dtype=clean.dtype)

        simple = (lambda: observed, lambda: clean, lambda: self.blurred(clean), uniform)
        if kind < len(simple):
            return simple[kind]()
        share = torch.rand(len(clean), 1, generator=generator, dtype=clean.dtype)
        mixed = (
            lambda: clean + normal(),
            lambda: observed + normal(),
            lambda: share * clean + (1 - share) * uniform(),
            lambda: share * clean + (1 - share) * observed,
        )
        return mixed[kind % 4]()

    def start(self, context: Tensor) -> Tensor:
        """Return the observation, the mean of the observed pixels where there is none."""
        observed, mask = context.split(self.dim, dim=-1)
        return observed + (1 - mask) * self.constant(context)

    # -- trivial decisions -----------------------------------------------------------------------------

    def observation(self, context: Tensor) -> Tensor:
        """Return Y, black where nothing was observed, (*batch, 2 n) -> (*batch, n)."""
        return context[..., : self.dim]

    def constant(self, context: Tensor) -> Tensor:
        """Return the mean of the observed pixels everywhere; 1/2 where there are none."""
        observed, mask = context.split(self.dim, dim=-1)
        count = mask.sum(dim=-1, keepdim=True)
        mean = (observed * mask).sum(dim=-1, keepdim=True) / count.clamp(min=1)
        return torch.where(count > 0, mean, 0.5).expand_as(observed)

    def moving_average(self, context: Tensor, width: int) -> Tensor:
        """Return the mean of the observed pixels in a square window, of all of them where it holds none."""
        observed, mask = (part.unflatten(-1, (self.size, self.size)) for part in context.split(self.dim, dim=-1))
        count = window_sums(mask, width, 2)
        mean = window_sums(observed * mask, width, 2) / count.clamp(min=1)
        return torch.where(count > 0.5, mean, self.constant(context).unflatten(-1, mean.shape[-2:])).flatten(-2)


def make_restoration(
    size: int = SIDE,
    *,
    faces: Faces | None = None,
    path: str | os.PathLike[str] | None = None,
    source: Source | None = None,
    download: bool = False,
) -> Restoration:
    """Return the image restoration task.

    Args:
        size: of the images, a divisor of 64.
        faces: the photographs, where they are loaded already; `path`, `source` and `download` as in
            `soctk_tasks.faces.load_faces` otherwise.

    Raises:
        ValueError: a bad size or source, or unknown images.
        FacesNotFoundError: there are no photographs.
    """
    photographs = load_faces(path, source=source, download=download) if faces is None else faces
    images = photographs.scaled(size).flatten(1)
    dim = size * size
    blur = SparseMap.of(stencil(gaussian_kernel(BLUR_SIZE, BLUR_SIGMA), size, size))
    bend = SparseMap.of(stencil(LAPLACIAN, size, size))
    move = SparseMap.of(image_gradient(size, size))

    def row(value: float, length: int) -> Tensor:
        return torch.full((1, 1, length), value, dtype=torch.float64)

    def form(context: Tensor) -> ConicForm:
        observed, mask = context.to(torch.float64).unsqueeze(1).split(dim, dim=-1)
        terms = (
            Quadratic(blur, -observed, RHO / dim * mask.square()),
            Quadratic(bend, row(0.0, dim), row(BETA / dim, dim)),
            Norms(move, row(0.0, 2 * dim), row(LAMBDA / dim, dim), row(EPSILON**0.5, dim), 2),
        )
        return ConicForm(row(0.0, 1)[0], row(0.0, dim), terms, (context.shape[0],))

    return Restoration(
        "restoration",
        dim,
        0,
        Box(dim),
        2 * dim,
        form,
        SIZES,
        CANDIDATES,
        images,
        photographs.identity,
        size,
        blur,
    )
