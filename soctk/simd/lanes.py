"""SIMD lanes: a number with `WIDTH` lanes, one instance in each, for compiled code.

The method is written once. Compiled for ordinary numbers it treats one instance, compiled for `Lanes` it treats eight
or sixteen in the time of two or three, because every operation is one on whole vector registers. A comparison of lanes
is a mask, and code that is to work for both says `choose(mask, a, b)` where ordinary code would branch.
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import numba.extending
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing.templates import AbstractTemplate, signature
from numba.extending import lower_cast, models, register_model
from numba.np.arrayobj import make_array, populate_array

from soctk import simd
from soctk.simd.functions import implements, register

intrinsic: Any = numba.extending.intrinsic
lower: Any = numba.extending.lower_builtin


def _has_wide_registers() -> bool:
    """Whether the processor has 32 vector registers of eight numbers; otherwise 16 of four are assumed."""
    try:
        return bool(get_host_cpu_features().get("avx512f", False))
    except RuntimeError:  # of some processors nothing is known
        return False


WIDE = _has_wide_registers()
WIDTH = 16 if WIDE else 8
"""Lanes: two vector registers. With one, as much time would go into addresses and loops as into numbers."""
FUSED = ("contract",)
"""A product and a sum may be rounded once instead of twice."""
VECTOR, BITS = ir.VectorType(ir.DoubleType(), WIDTH), ir.VectorType(ir.IntType(64), WIDTH)


class LanesType(types.Type):
    """The compiler's type of a number with lanes."""

    def unify(self, typingctx, other):
        """Lanes and a number are lanes."""
        return self if isinstance(other, types.Number) else None

    def can_convert_from(self, typingctx, other):
        """A number is the same in all lanes."""
        return Conversion.safe if isinstance(other, types.Number) else None


class MaskType(types.Type):
    """The compiler's type of a comparison's answer, lane by lane."""

    def unify(self, typingctx, other):
        """A mask and a truth value are a mask."""
        return self if isinstance(other, types.Boolean) else None


lanes, mask = LanesType("Lanes"), MaskType("Mask")


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, VECTOR)


@register_model(MaskType)
class _MaskModel(models.PrimitiveModel):
    # All bits of a lane are set or none: what vector comparisons yield.
    def __init__(self, manager, kind):
        super().__init__(manager, kind, BITS)


def spread(builder, number, kind):
    """Return a vector register of a kind with the same number in all lanes."""
    empty = ir.Constant(kind, ir.Undefined)
    from_first = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    return builder.shuffle_vector(builder.insert_element(empty, number, ir.IntType(32)(0)), empty, from_first)


@lower_cast(types.Number, LanesType)
def _number_to_lanes(context, builder, source, target, value):
    return spread(builder, context.cast(builder, value, source, types.float64), VECTOR)


@lower_cast(types.Boolean, MaskType)
def _truth_to_mask(context, builder, source, target, value):
    return spread(builder, builder.sext(value, ir.IntType(64)), BITS)


def _flags(builder, bits):
    return builder.icmp_signed("!=", bits, ir.Constant(BITS, [0] * WIDTH))


def _define(operators, result, generate, arity=2, operand=lanes):
    """Define operators of lanes (or of masks); of two operands one may be ordinary."""

    class Template(AbstractTemplate):
        metadata: ClassVar = {"target": "cpu"}  # looked at before the many templates that hold for every target

        def generic(self, args, kws):
            mixed = all(a == operand or isinstance(a, (types.Number, types.Boolean)) for a in args)
            known = len(args) == arity and mixed and operand in args
            return signature(result, *(operand,) * arity) if known else None

    for symbol in operators:
        register(symbol)(type("LanesTemplate", (Template,), {"key": symbol}))
        lower(symbol, *(operand,) * arity)(lambda context, builder, sig, args: generate(context, builder, args))


def _arithmetic(name, flags):
    return lambda context, builder, args: getattr(builder, name)(*args, flags=flags)


def _comparison(symbol, ordered=True):
    def generate(context, builder, args):
        compare = builder.fcmp_ordered if ordered else builder.fcmp_unordered
        return builder.sext(compare(symbol, *args), BITS)

    return generate


def _smaller(symbol):
    def generate(context, builder, args):
        return builder.select(builder.fcmp_ordered(symbol, args[1], args[0]), args[1], args[0])

    return generate


def _vector_function(name):
    def generate(context, builder, args):
        kind = ir.FunctionType(VECTOR, [VECTOR])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f64")
        return builder.call(function, args)

    return generate


def _lane_by_lane(function):
    def generate(context, builder, args):
        kind = context.typing_context.resolve_value_type(function)
        sig = kind.get_call_type(context.typing_context, (types.float64,), {})
        scalar = context.get_function(kind, sig)
        result = ir.Constant(VECTOR, ir.Undefined)
        for lane in range(WIDTH):
            at = ir.IntType(32)(lane)
            result = builder.insert_element(result, scalar(builder, [builder.extract_element(args[0], at)]), at)
        return result

    return generate


for _symbols, _name, _kept in (
    ((operator.add, operator.iadd), "fadd", FUSED),
    ((operator.sub, operator.isub), "fsub", FUSED),
    ((operator.mul, operator.imul), "fmul", FUSED),
    ((operator.truediv, operator.itruediv), "fdiv", ()),
):
    _define(_symbols, lanes, _arithmetic(_name, _kept))
for _symbol, _sign in (
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
):
    _define([_symbol], mask, _comparison(_sign))
_define([operator.ne], mask, _comparison("!=", ordered=False))
_define([min], lanes, _smaller("<"))
_define([max], lanes, _smaller(">"))
_define([abs], lanes, _vector_function("fabs"), arity=1)
_define([operator.neg], lanes, lambda context, builder, args: builder.fneg(args[0]), arity=1)
_define([np.sqrt], lanes, _vector_function("sqrt"), arity=1)
for _function in (np.exp, np.log, np.log1p):
    _define([_function], lanes, _lane_by_lane(_function), arity=1)
_define([operator.and_, operator.iand], mask, lambda c, builder, args: builder.and_(*args), operand=mask)
_define([operator.or_, operator.ior], mask, lambda c, builder, args: builder.or_(*args), operand=mask)
_define([operator.not_], mask, lambda c, builder, args: builder.not_(args[0]), arity=1, operand=mask)


@implements(simd.choose)
def _choose(typing_context, condition, yes, no):
    kind = lanes if lanes in (yes, no) or condition == mask else types.float64

    def generate(context, builder, sig, args):
        condition, yes, no = args
        return builder.select(_flags(builder, condition) if sig.args[0] == mask else condition, yes, no)

    return kind(mask if kind == lanes else types.boolean, kind, kind), generate


@implements(simd.any_of)
def _any_of(typing_context, condition):

    def generate(context, builder, sig, args):
        if sig.args[0] != mask:
            return args[0]
        bits = builder.bitcast(_flags(builder, args[0]), ir.IntType(WIDTH))
        return builder.icmp_unsigned("!=", bits, ir.IntType(WIDTH)(0))

    return types.boolean(condition), generate


@implements(simd.view)
def _view(typing_context, array, start, size):
    kind = types.Array(array.dtype, 1, "C")

    def generate(context, builder, sig, args):
        source = make_array(sig.args[0])(context, builder, args[0])
        return vector_over(context, builder, kind, builder.gep(source.data, [args[1]]), args[2])

    return kind(array, types.intp, types.intp), generate


@intrinsic
def as_lanes(typing_context, array):
    """Return an aligned array (size, WIDTH) of numbers as a vector of lanes, and a vector of numbers as one."""
    return _reinterpreted(array, types.float64 if array.ndim == 1 else lanes)


@intrinsic
def flat(typing_context, array):
    """Return a vector of lanes as a vector of WIDTH times as many numbers, and one of numbers as one."""
    return _reinterpreted(array, types.float64)


@intrinsic
def width_of(typing_context, vector):
    """Return how many instances a vector is of: `WIDTH` with lanes, 1 without."""
    width = WIDTH if vector.dtype == lanes else 1
    return types.intp(vector), lambda context, builder, sig, args: context.get_constant(types.intp, width)


def aligned_zeros(size: int) -> np.ndarray:
    """Return zeros (size, WIDTH) for `as_lanes`, which begin where a vector register's memory may."""
    numbers = np.zeros((size + 1) * WIDTH)
    start = -numbers.ctypes.data // numbers.itemsize % WIDTH
    return numbers[start : start + size * WIDTH].reshape(size, WIDTH)


def _reinterpreted(array, dtype):
    """Return signature and code of an array's memory as a vector of another type."""
    kind = types.Array(dtype, 1, "C")
    repeats = WIDTH if array.dtype == lanes and dtype != lanes else 1

    def generate(context, builder, sig, args):
        source = make_array(sig.args[0])(context, builder, args[0])
        size = builder.mul(builder.extract_value(source.shape, 0), context.get_constant(types.intp, repeats))
        data = builder.bitcast(source.data, context.get_data_type(dtype).as_pointer())
        return vector_over(context, builder, kind, data, size)

    return kind(array), generate


def vector_over(context, builder, kind, data, size):
    """Return an array of one dimension over memory that someone else owns."""
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    result = make_array(kind)(context, builder)
    populate_array(
        result,
        data=data,
        shape=cgutils.pack_array(builder, [size]),
        strides=cgutils.pack_array(builder, [itemsize]),
        itemsize=itemsize,
        meminfo=None,
    )
    return result._getvalue()
