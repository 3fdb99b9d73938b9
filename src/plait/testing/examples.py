"""Models to merge with what merges stumble over."""

from __future__ import annotations

from plait.methods.base import TensorMethod
from plait.methods.pieces import content, mergeable, whole
from plait.tensors import Tensor, torch

Model = dict[str, Tensor]


def examples(dtype: str, count: int = 4, *, large: bool = False, seed: int = 0) -> tuple[Model, list[Model]]:
    """A base and `count` experts with what merges stumble over: tiny and denormal elements, zeros of both signs,
    elements and whole tensors that no expert changes, tensors without elements, 0-d tensors, a buffer.

    dtype: name of a torch float dtype. large: with a tensor that is longer than a block.
    """
    kind: torch.dtype = getattr(torch, dtype)
    shapes: dict[str, tuple[int, ...]] = {
        "layer.weight": (24, 17),
        "layer.bias": (24,),
        "head.weight": (5, 31),
        "conv.weight": (4, 3, 2, 2),
        "embedding.weight": (13, 8),
        "scale": (),
        "one": (1,),
        "nothing": (0, 3),
    }
    if large:
        shapes["long.weight"] = (83, 800)
    draw = torch.Generator().manual_seed(seed)
    base: Model = {n: _edge(torch.randn(s, generator=draw) * 0.02, kind, draw) for n, s in shapes.items()}
    deep = torch.Generator().manual_seed(seed + 1)  # layers of a number, for options that differ by depth
    for name in ("blocks.0.weight", "blocks.1.weight", "blocks.2.weight"):
        base[name] = (torch.randn(6, 5, generator=deep) * 0.02).to(kind)
    base["frozen"] = torch.randn(7, generator=draw).to(kind)
    base["steps"] = torch.tensor([3, 1])
    experts = []
    for i in range(count):
        expert = {n: t.clone() for n, t in base.items()}
        for n in shapes:
            if n == "head.weight" and i == 1:
                continue  # a tensor that this expert leaves as it is
            moved = base[n].double() + torch.randn(shapes[n], generator=draw).double() * 0.002
            expert[n] = _edge(moved, kind, draw)
        for name in (n for n in base if n.startswith("blocks.")):
            moved = base[name].double() + torch.randn(6, 5, generator=deep).double() * 0.002
            expert[name] = moved.to(kind)
        experts.append(expert)
    return base, experts


def _edge(values: Tensor, kind: torch.dtype, draw: torch.Generator) -> Tensor:
    """`values` in dtype `kind`, with some elements replaced by awkward ones."""
    out = values.to(kind)
    info = torch.finfo(kind)
    odd = [0.0, -0.0, info.tiny, -info.tiny, info.tiny / 4, -info.smallest_normal / 2, info.eps**2, 1.0, -1.0]
    if out.numel() >= 20:
        at = torch.randint(out.numel(), (len(odd) * (1 + out.numel() // 200),), generator=draw)
        flat = out.view(-1)
        flat[at] = torch.tensor(odd, dtype=torch.float64).repeat(len(at) // len(odd)).to(kind)
    return out


def sides_of(method: TensorMethod, base: Model, expert: Model) -> Model:
    """What `method.sides` asks for, made up, a function of the expert's content: second moments of few inputs where a
    side is square and of another shape than its tensor, else magnitudes of all sizes, some of them 0."""
    draw = torch.Generator().manual_seed(int.from_bytes(content(expert)[:7], "little"))
    sides: Model = {}
    for name, tensor in base.items():
        if not mergeable(tensor) or not tensor.numel():
            continue
        place = whole(name, tensor)
        for side, shape in method.sides(place.shape, name, place.dtype).items():
            if shape != place.shape and len(shape) == 2 and shape[0] == shape[1]:
                inputs = torch.randint(-9, 10, (shape[0] // 2 + 1, shape[0]), generator=draw).double()
                sides[f"{side}/{name}"] = inputs.T @ inputs / len(inputs)
            else:
                sizes = torch.randint(-60, 2, shape, generator=draw).double().exp2()
                sides[f"{side}/{name}"] = sizes * torch.randint(0, 3, shape, generator=draw)
    return sides


def smooth(dtype: str) -> tuple[Model, list[Model]]:
    """A base and experts without awkward elements, close to each other, so that shorter ways hold."""
    kind: torch.dtype = getattr(torch, dtype)
    draw = torch.Generator().manual_seed(1)
    base = torch.randint(256, 512, (900,), generator=draw).double() / 1024
    moves = [torch.randint(-64, 65, (900,), generator=draw).double() / 1024 for _ in range(4)]
    return {"w": base.to(kind)}, [{"w": (base + m).to(kind)} for m in moves]
