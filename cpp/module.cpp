// The Python module: weights, a pool, and the single kernels for their tests; networks are bound elsewhere.
#include "bindings.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "attention_plan.h"

using namespace slimtier;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

static const char* const kKinds[] = {"f32", "f16", "bf16", "q8", "q4"};

static Kind kind_of(const std::string& name) {
  for (int i = 0; i < 5; ++i)
    if (name == kKinds[i]) return Kind(i);
  throw std::invalid_argument("unknown kind " + name);
}

Vector vector_of(const std::optional<ConstFloats>& values) {
  return values ? Vector(values->data(), values->data() + values->size()) : Vector();
}

static std::shared_ptr<Packed> from_floats(ConstFloats values, const std::string& kind) {
  require(values.ndim() == 2, "weights must be [n, k]");
  nb::gil_scoped_release release;
  return std::make_shared<Packed>(pack_floats(values.data(), values.shape(0), values.shape(1), kind_of(kind)));
}

static std::shared_ptr<Packed> from_codes(Bytes codes, ConstFloats scales, std::optional<ConstFloats> mins, int group, int bits) {
  const int64_t n = codes.shape(0), k = codes.shape(1), groups = (k + group - 1) / group;
  require(bits == 8 || bits == 4, "bits must be 4 or 8");
  require(group == 32 || (group == 16 && bits == 8 && !mins), "groups of 32 (or of 16 for 8 bits without mins)");
  require(bits == 8 || mins.has_value(), "4-bit codes need mins");
  require(int64_t(scales.size()) == n * groups && (!mins || int64_t(mins->size()) == n * groups), "one scale and min a group");
  const float* min_data = mins ? mins->data() : nullptr;
  nb::gil_scoped_release release;
  return std::make_shared<Packed>(pack_codes(codes.data(), scales.data(), min_data, n, k, group, bits == 8 ? Kind::q8 : Kind::q4));
}

// The same bytes, for another way to multiply; floats stay what they are.
static std::shared_ptr<Packed> multiplied(const Packed& p, bool in_floats) {
  auto found = std::make_shared<Packed>(p);
  found->in_floats = in_floats && p.panel == 8;
  return found;
}

// One head's attention over given keys and values [tokens, head_dim], q [count, heads, head_dim] at positions start …,
// appended `chunk` queries at a time: for comparison with the plain formula.
static void attention_test(Pool& pool, ConstFloats q, ConstFloats k, ConstFloats v, int64_t start, int64_t chunk, int64_t window,
                           float softcap, bool half, Floats out) {
  const int64_t count = q.shape(0), heads = q.shape(1), dim = q.shape(2), kv_heads = k.shape(1), tokens = k.shape(0);
  KvStore store(1, kv_heads, dim, tokens, half);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < kv_heads; ++h) {
      kernels().put_key(k.data() + (t * kv_heads + h) * dim, store.keys(0, h), half, t, dim);
      kernels().put_value(v.data() + (t * kv_heads + h) * dim, store.values(0, h), half, t, dim);
    }
  for (int64_t at = 0; at < count; at += chunk) {
    const std::vector<Run> runs{{&store, start + at, std::min(chunk, count - at)}};
    const AttentionPlan plan(runs, heads, kv_heads, dim, window, pool.size());
    float* to = out.data() + at * heads * dim;
    pool.run([&](Lane& lane) {
      lane.share(plan.tasks(), plan.chunk(), [&](int64_t first, int64_t last) {
        plan.run(first, last, 0, q.data() + at * heads * dim, softcap, to);
      });
      lane.share(runs[0].count, 1, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) plan.finish(t, to + t * heads * dim);
      });
    });
  }
}

NB_MODULE(_core, m) {
  m.doc() = "slimtier's CPU kernels";
  m.def("isa", [] { return kernels().name; }, "The instruction set in use.");
  m.def("has_isa", [](const std::string& name) { return kernels_named(name.c_str()) != nullptr; });

  nb::class_<Pool>(m, "Pool").def(nb::init<int>(), nb::arg("threads")).def_prop_ro("size", &Pool::size);

  nb::class_<Packed>(m, "Matrix")
      .def_static("from_floats", &from_floats, nb::arg("values"), nb::arg("kind") = "f32")
      .def_static("from_codes", &from_codes, nb::arg("codes"), nb::arg("scales"), nb::arg("mins").none(), nb::arg("group"), nb::arg("bits"))
      .def_ro("n", &Packed::n)
      .def_ro("k", &Packed::k)
      .def_ro("nbytes", &Packed::bytes)
      .def_prop_ro("kind", [](const Packed& p) { return kKinds[int(p.in_floats ? Kind::f32 : p.kind)]; })
      .def_prop_ro("stored", [](const Packed& p) { return kKinds[int(p.kind)]; })
      .def("in_floats", [](const Packed& p) { return multiplied(p, true); })
      .def("in_integers", [](const Packed& p) { return multiplied(p, false); })
      .def("shares", [](const Packed& p, const Packed& other) { return p.data == other.data; })
      .def("row", [](const Packed& p, int64_t row, Floats out) {
        require(row >= 0 && row < p.n && int64_t(out.size()) == p.k, "no such row, or the output has another size");
        p.row(row, out.data());
      })
      .def("linear", [](const Packed& p, Pool& pool, ConstFloats x, Floats out) {
        require(x.ndim() == 2 && int64_t(x.shape(1)) == p.k && int64_t(out.size()) == int64_t(x.shape(0)) * p.n, "x must be [t, k] and out [t, n]");
        nb::gil_scoped_release release;
        linear_forward(pool, p, x.data(), int64_t(x.shape(0)), out.data());
      });

  bind_network(m);
  bind_drafter(m);

  m.def("rms_norm", [](ConstFloats x, ConstFloats weight, float eps, Floats out) {
    const int64_t k = int64_t(weight.size());
    require(x.size() == out.size() && k > 0 && x.size() % size_t(k) == 0, "x and out must be [t, k]");
    for (int64_t t = 0; t < int64_t(x.size()) / k; ++t) kernels().rms_norm(x.data() + t * k, weight.data(), eps, k, out.data() + t * k);
  });
  m.def("act_mul", [](ConstFloats gate, ConstFloats up, bool gelu, Floats out) {
    require(gate.size() == up.size() && up.size() == out.size(), "gate, up and out must have one shape");
    kernels().act_mul(gate.data(), up.data(), gelu, int64_t(gate.size()), out.data());
  });
  m.def("rope", [](Floats x, ConstFloats cos, ConstFloats sin, float scale) {
    const int64_t dim = int64_t(cos.size()) * 2;
    require(dim > 0 && x.size() % size_t(dim) == 0, "x must be [heads, head_dim]");
    for (int64_t i = 0; i < int64_t(x.size()); i += dim) kernels().rope(x.data() + i, cos.data(), sin.data(), dim, scale);
  });
  m.def("softcap", [](Floats x, float cap) { kernels().softcap(x.data(), int64_t(x.size()), cap); });
  m.def("attention", &attention_test);
}
