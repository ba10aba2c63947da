"""A stand-in for an Apple GPU: tensors on it are kept on the CPU, name ``mps`` as their device, and refuse float64."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

APPLE, CPU = torch.device("mps"), torch.device("cpu")


class AppleTensor(Tensor):
    """A tensor on the stand-in."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone()
        return nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied


class AppleGpu(TorchFunctionMode):
    """While entered, ``to("mps")`` and ``device="mps"`` give tensors on the stand-in."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = tree_flatten((args, kwargs))[0]
    inputs = [value for value in values if isinstance(value, Tensor)]
    on_apple = any(isinstance(value, AppleTensor) for value in inputs)
    if getattr(func, "__self__", None) is Tensor.device and on_apple:
        return APPLE
    if func is Tensor.numpy and on_apple:
        raise TypeError("can't convert mps:0 device type tensor to numpy.")
    if func is torch._C._nn._parse_to:
        return func(*args, **kwargs)
    targets = [torch.device(value) for value in values if _names_device(value)]
    if func is Tensor.cpu:
        targets = [CPU]
    elif func is Tensor.to and len(inputs) == 2:
        targets = [APPLE if isinstance(inputs[1], AppleTensor) else CPU]
    with torch._C.DisableTorchFunctionSubclass():
        args, kwargs = tree_map(lambda value: CPU if _names_device(value) else value, (args, kwargs))
        result = func(*args, **kwargs)
    return tree_map(_to_apple if (APPLE in targets if targets else on_apple) else _to_cpu, result)


def _names_device(value: Any) -> bool:
    return isinstance(value, (torch.device, str)) and str(value) in ("cpu", "mps")


def _to_apple(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return value if isinstance(value, AppleTensor) else value.as_subclass(AppleTensor)


def _to_cpu(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, AppleTensor) else value
