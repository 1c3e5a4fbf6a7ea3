"""Records in compiled code: the parts of a `soctk.simd.tables.Table` as attributes.

`iterate.x` is a view (n,) of its vector, `iterate.mu` the number itself, which may be assigned to, `iterate.n` a size.
A vector may be of numbers or of lanes; its parts are then too. Arrays of several dimensions are views of one
dimension, row after row.

A record is one pointer for each vector and one for the layout. A NamedTuple of as many views would be passed from
function to function by hundreds of numbers.
"""

from __future__ import annotations

from typing import Any

import numba.extending
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    lower_getattr_generic,
    lower_setattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import make_array

from soctk.simd.lanes import vector_over
from soctk.simd.tables import Table

intrinsic: Any = numba.extending.intrinsic


class RecordType(types.Type):
    """The compiler's type of a record: a table, the types of the numbers in its vectors, and anything else."""

    def __init__(self, table: Table, numbers: dict[str, types.Type], more: Any = None) -> None:
        self.table, self.numbers, self.more = table, numbers, more
        inside = ", ".join(f"{vector}: {number}" for vector, number in numbers.items())
        super().__init__(f"Record({table.number}, {inside}, {more})")

    def type_of(self, name: str) -> types.Type | None:
        """Return the type of an attribute, None where there is none."""
        if name in self.table.sizes:
            return types.intp
        number = self.numbers.get(self.table.vector_of.get(name, ""))
        if number is None or self.table.scalar(name):
            return number
        return types.Array(number, 1, "C")


@register_model(RecordType)
class _RecordModel(models.StructModel):
    def __init__(self, manager, kind):
        pointers = [(vector, types.CPointer(number)) for vector, number in kind.numbers.items()]
        super().__init__(manager, kind, [("layout", types.CPointer(types.intp)), *pointers])


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record, name):
        return record.type_of(name)


def load_integer(builder, layout, place):
    """Return layout[place]. Nobody writes to a layout while compiled code runs, which the compiler makes use of."""
    loaded = builder.load(builder.gep(layout, [cgutils.intp_t(place)]))
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _address(context, builder, kind, value, name):
    """Return the address at which a part begins."""
    struct = cgutils.create_struct_proxy(kind)(context, builder, value)
    start = load_integer(builder, struct.layout, kind.table.places[name])
    return struct, builder.gep(getattr(struct, kind.table.vector_of[name]), [start])


@lower_getattr_generic(RecordType)
def _get(context, builder, kind, value, name):
    if name in kind.table.sizes:
        layout = cgutils.create_struct_proxy(kind)(context, builder, value).layout
        return load_integer(builder, layout, kind.table.places[name])
    struct, address = _address(context, builder, kind, value, name)
    found = kind.type_of(name)
    if not isinstance(found, types.Array):
        return builder.load(address)
    size = load_integer(builder, struct.layout, kind.table.places[name] + 1)
    return vector_over(context, builder, found, address, size)


@lower_setattr_generic(RecordType)
def _set(context, builder, sig, args, name):
    assert sig.args[0].table.scalar(name), f"{name} is no number: its entries can be assigned to, it cannot"
    builder.store(args[1], _address(context, builder, sig.args[0], args[0], name)[1])


def make_record(context, builder, kind, layout, **pointers):
    """Return a record of a type, its layout and vectors given by where they begin."""
    struct = cgutils.create_struct_proxy(kind)(context, builder)
    struct.layout = layout
    for vector, pointer in pointers.items():
        setattr(struct, vector, pointer)
    return struct._getvalue()


def pointer_to(context, builder, kind, value):
    """Return where an array's numbers begin; of a record, its layout."""
    if isinstance(kind, RecordType):
        return cgutils.create_struct_proxy(kind)(context, builder, value).layout
    return make_array(kind)(context, builder, value).data


def record_of(table: Table, vector: str) -> Any:
    """Return a function (layout, array) that makes a record of one vector in compiled code.

    Its first argument is the layout, or a record that has the same.
    """

    @intrinsic
    def make(typing_context, layout, array):
        kind = RecordType(table, {vector: array.dtype})

        def generate(context, builder, sig, args):
            first, second = (pointer_to(context, builder, *pair) for pair in zip(sig.args, args, strict=True))
            return make_record(context, builder, kind, first, **{vector: second})

        return kind(layout, array), generate

    return make
