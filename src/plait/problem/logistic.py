"""Multinomial logistic regression, solved to its minimum: the head that is fitted on frozen features."""

from __future__ import annotations

from plait.tensors import Tensor, torch

PENALTY = 10.0
STEPS = 100  # of Newton's method; 10 to 20 are enough
PRODUCTS = 250  # of the Hessian with a vector, in one step
SLOPE = 1e-9  # the length of the gradient at which it ends


def fit_linear(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(classes, width) weight and (classes,) bias, fp64.

    features: (n, width), any float dtype; labels: (n,) int64. Features are centred and divided by one number, so that
    their mean square is 1. Of these the mean cross-entropy + 10 |weight|^2 / (2 n) is minimised, in fp64, from zero,
    by Newton's method, each step solved by conjugate gradients (Nocedal and Wright 2006, algorithm 7.1), until the
    gradient is shorter than 1e-9. There is one minimum, so the result depends on nothing else; nothing is drawn.
    Cost: some hundred products of the features with a matrix of `classes` columns.
    """
    wide = features.double()
    centre = wide.mean(0)
    scale = (wide - centre).square().mean().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    inputs = torch.cat([(wide - centre) / scale, torch.ones_like(wide[:, :1])], dim=1)
    found = _minimum(inputs, torch.nn.functional.one_hot(labels, classes).double())
    weight = found[:, :-1] / scale
    return weight, found[:, -1] - weight @ centre


def _minimum(inputs: Tensor, wanted: Tensor) -> Tensor:
    """(classes, width + 1). inputs: (n, width + 1), a last column of ones; wanted: (n, classes), 1 for the label."""
    penalty = torch.full_like(inputs[0], PENALTY / len(inputs))
    penalty[-1] = 0  # the bias is free
    weight = torch.zeros(wanted.shape[1], inputs.shape[1]).to(inputs)
    with torch.no_grad():
        for _ in range(STEPS):
            loss = _Loss(inputs, wanted, penalty, weight)
            if loss.slope.norm() <= SLOPE:
                break
            weight = loss.lower(loss.newton_step())
    return weight


class _Loss:
    """The loss at one weight, with its gradient and Hessian."""

    def __init__(self, inputs: Tensor, wanted: Tensor, penalty: Tensor, weight: Tensor) -> None:
        self.inputs, self.wanted, self.penalty, self.weight = inputs, wanted, penalty, weight
        self.shares = (inputs @ weight.mT).softmax(1)
        self.slope = (self.shares - wanted).mT @ inputs / len(inputs) + penalty * weight

    def value(self, weight: Tensor) -> Tensor:
        logits = self.inputs @ weight.mT
        fit = (logits.logsumexp(1) - (logits * self.wanted).sum(1)).mean()
        return fit + (self.penalty * weight.square()).sum() / 2

    def product(self, direction: Tensor) -> Tensor:
        """The Hessian times `direction`."""
        moved = self.shares * (self.inputs @ direction.mT)
        moved -= self.shares * moved.sum(1, keepdim=True)
        return moved.mT @ self.inputs / len(self.inputs) + self.penalty * direction

    def newton_step(self) -> Tensor:
        """-H^-1 times the gradient, by conjugate gradients: the more exactly, the nearer the minimum is."""
        left = -self.slope
        length = left.norm()
        enough = min(0.1, length.item() ** 0.5) * length
        step, direction, square = torch.zeros_like(left), left, left.square().sum()
        for _ in range(PRODUCTS):
            bent = self.product(direction)
            share = square / (direction * bent).sum()
            step = step + share * direction
            left = left - share * bent
            before, square = square, left.square().sum()
            if square.sqrt() <= enough:
                break
            direction = left + square / before * direction
        return step

    def lower(self, step: Tensor) -> Tensor:
        """The weight after `step`, or after half of it, a quarter, ..., the first at which the loss is lower."""
        value, descent = self.value(self.weight), (self.slope * step).sum()
        noise = 8 * torch.finfo(torch.float64).eps * (1 + value)
        share = 1.0
        while self.value(self.weight + share * step) > value + 1e-4 * share * descent + noise:
            share /= 2
        return self.weight + share * step
