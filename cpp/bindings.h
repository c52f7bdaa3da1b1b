// What the files that bind the core to Python share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <vector>

#include "layers.h"

namespace nb = nanobind;

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using ConstIds = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;
using RopeArrays = std::tuple<ConstFloats, ConstFloats>;

void require(bool condition, const char* what);  // ValueError
slimtier::Vector vector_of(const std::optional<ConstFloats>& values);
// The first layer's q, k and v take `first_width` columns, the others' the hidden width.
slimtier::Network make_network(nb::dict shape, const std::vector<RopeArrays>& ropes, nb::list layers, int64_t first_width);
// The rows that have tokens, checked against their stores; the counts sum up to `tokens`, whose ids are checked too.
std::vector<slimtier::Run> make_runs(const slimtier::Network& network, const ConstIds& tokens, int64_t vocab,
                                     const std::vector<slimtier::KvStore*>& stores, const std::vector<int64_t>& starts,
                                     const std::vector<int64_t>& counts);
nb::dict timing_dict(const slimtier::Timing& timing);

void bind_network(nb::module_& m);  // KvStore, Decoder
void bind_drafter(nb::module_& m);  // DraftHead, Drafter
