// Python bindings: weights, a pool, a decoder, and the single kernels for their tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "attention_plan.h"
#include "decoder.h"

namespace nb = nanobind;
using namespace slimtier;

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstIds = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

static void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

static const char* const kKinds[] = {"f32", "f16", "bf16", "q8", "q4"};

static Kind kind_of(const std::string& name) {
  for (int i = 0; i < 5; ++i)
    if (name == kKinds[i]) return Kind(i);
  throw std::invalid_argument("unknown kind " + name);
}

static Vector vector_of(const std::optional<ConstFloats>& values) {
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

static Layer make_layer(nb::dict d) {
  Layer layer;
  const auto weights = [&](const char* name) { return Weights(nb::cast<std::shared_ptr<Packed>>(d[name])); };
  const auto vector = [&](const char* name) { return vector_of(nb::cast<std::optional<ConstFloats>>(d[name])); };
  layer.q = weights("q"); layer.k = weights("k"); layer.v = weights("v"); layer.o = weights("o");
  layer.gate = weights("gate"); layer.up = weights("up"); layer.down = weights("down");
  layer.input_norm = vector("input_norm"); layer.post_attention_norm = vector("post_attention_norm");
  layer.mlp_norm = vector("mlp_norm"); layer.post_mlp_norm = vector("post_mlp_norm");
  layer.q_norm = vector("q_norm"); layer.k_norm = vector("k_norm");
  layer.q_bias = vector("q_bias"); layer.k_bias = vector("k_bias"); layer.v_bias = vector("v_bias");
  layer.window = nb::cast<int64_t>(d["window"]);
  layer.local_rope = nb::cast<bool>(d["local_rope"]);
  return layer;
}

static Shape make_shape(nb::dict d) {
  Shape s;
  s.hidden = nb::cast<int64_t>(d["hidden"]); s.heads = nb::cast<int64_t>(d["heads"]);
  s.kv_heads = nb::cast<int64_t>(d["kv_heads"]); s.head_dim = nb::cast<int64_t>(d["head_dim"]);
  s.intermediate = nb::cast<int64_t>(d["intermediate"]); s.eps = nb::cast<float>(d["eps"]);
  s.attention_scale = nb::cast<float>(d["attention_scale"]); s.attention_softcap = nb::cast<float>(d["attention_softcap"]);
  s.embedding_scale = nb::cast<float>(d["embedding_scale"]); s.head_softcap = nb::cast<float>(d["head_softcap"]);
  s.gelu = nb::cast<bool>(d["gelu"]);
  return s;
}

static void check_layer(const Shape& s, const Layer& l) {
  const auto shaped = [](const Weights& w, int64_t n, int64_t k) { require(w && w->n == n && w->k == k, "a weight's shape does not fit the model"); };
  const auto sized = [](const Vector& v, int64_t n) { require(v.empty() || int64_t(v.size()) == n, "a vector's size does not fit the model"); };
  shaped(l.q, s.heads * s.head_dim, s.hidden); shaped(l.k, s.kv_heads * s.head_dim, s.hidden);
  shaped(l.v, s.kv_heads * s.head_dim, s.hidden); shaped(l.o, s.hidden, s.heads * s.head_dim);
  shaped(l.gate, s.intermediate, s.hidden); shaped(l.up, s.intermediate, s.hidden); shaped(l.down, s.hidden, s.intermediate);
  for (const Vector* v : {&l.input_norm, &l.post_attention_norm, &l.mlp_norm, &l.post_mlp_norm}) sized(*v, s.hidden);
  for (const Vector* v : {&l.q_norm, &l.k_norm}) sized(*v, s.head_dim);
  sized(l.q_bias, s.heads * s.head_dim); sized(l.k_bias, s.kv_heads * s.head_dim); sized(l.v_bias, s.kv_heads * s.head_dim);
}

static std::shared_ptr<Decoder> make_decoder(nb::dict shape_dict, std::shared_ptr<Packed> embedding, std::shared_ptr<Packed> head,
                                             ConstFloats final_norm, std::vector<std::tuple<ConstFloats, ConstFloats>> ropes,
                                             nb::list layer_dicts, std::shared_ptr<Pool> pool) {
  const Shape shape = make_shape(shape_dict);
  require(embedding->k == shape.hidden && head->k == shape.hidden && int64_t(final_norm.size()) == shape.hidden,
          "embedding, head or final norm does not fit the model");
  std::vector<RopeTable> tables;
  for (auto& [cos, sin] : ropes) {
    require(cos.ndim() == 2 && int64_t(cos.shape(1)) == shape.head_dim / 2 && cos.size() == sin.size(), "rope tables must be [positions, head_dim / 2]");
    tables.push_back({int64_t(cos.shape(0)), Vector(cos.data(), cos.data() + cos.size()), Vector(sin.data(), sin.data() + sin.size())});
  }
  std::vector<Layer> layers;
  for (nb::handle h : layer_dicts) {
    layers.push_back(make_layer(nb::cast<nb::dict>(h)));
    check_layer(shape, layers.back());
    require(!layers.back().local_rope || tables.size() == 2, "a layer with a local rope needs a second table");
  }
  return std::make_shared<Decoder>(shape, embedding, head, Vector(final_norm.data(), final_norm.data() + final_norm.size()),
                                   std::move(tables), std::move(layers), pool);
}

static void forward(Decoder& d, ConstIds tokens, const std::vector<KvStore*>& stores, const std::vector<int64_t>& starts,
                    const std::vector<int64_t>& counts, const std::vector<uint8_t>& attention, const std::vector<uint8_t>& mlp,
                    const std::vector<int64_t>& capture, Floats hidden, Floats features) {
  Pass pass{tokens.data(), {}, attention, mlp, capture, hidden.data(), features.data()};
  int64_t total = 0;
  require(stores.size() == starts.size() && starts.size() == counts.size(), "one start and count a row");
  for (size_t i = 0; i < stores.size(); ++i) {
    if (counts[i] == 0) continue;
    require(starts[i] >= 0 && counts[i] > 0 && starts[i] + counts[i] <= std::min(stores[i]->capacity(), d.positions()),
            "a row is longer than its cache or the model's positions");
    pass.runs.push_back({stores[i], starts[i], counts[i]});
    total += counts[i];
  }
  const int64_t layers = d.num_layers(), width = d.shape().hidden;
  require(int64_t(tokens.size()) == total, "tokens and counts disagree");
  require((attention.empty() || int64_t(attention.size()) == layers) && (mlp.empty() || int64_t(mlp.size()) == layers), "one flag a layer");
  for (int64_t layer : capture) require(layer >= 0 && layer < layers, "no such layer to capture");
  require(int64_t(hidden.size()) == total * width && int64_t(features.size()) == total * width * int64_t(capture.size()), "output size");
  for (size_t i = 0; i < tokens.size(); ++i) require(tokens.data()[i] >= 0 && tokens.data()[i] < d.vocab(), "token id outside the vocabulary");
  nb::gil_scoped_release release;
  d.forward(pass);
}

static int64_t rows_of(const Decoder& d, const ConstFloats& hidden) {
  require(hidden.ndim() == 2 && int64_t(hidden.shape(1)) == d.shape().hidden, "hidden must be [m, hidden]");
  return int64_t(hidden.shape(0));
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
    const AttentionPlan plan(runs, heads, kv_heads, dim, window);
    float* to = out.data() + at * heads * dim;
    pool.run([&](Lane& lane) {
      lane.share(int64_t(plan.tasks.size()), 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) plan.run(plan.tasks[size_t(i)], 0, q.data() + at * heads * dim, softcap, to);
      });
      lane.share(runs[0].count, 1, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) plan.finish(t, to + t * heads * dim);
      });
    });
  }
}

static nb::dict topk_dict(Decoder& d, ConstFloats hidden, int64_t k) {
  const int64_t m = rows_of(d, hidden);
  require(k >= 1 && k <= d.vocab(), "k must be between 1 and the vocabulary's size");
  TopK found;
  {
    nb::gil_scoped_release release;
    found = d.topk(hidden.data(), m, k);
  }
  nb::dict result;
  result["values"] = found.values;
  result["ids"] = found.ids;
  result["logsumexp"] = found.logsumexp;
  return result;
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
      .def_prop_ro("kind", [](const Packed& p) { return kKinds[int(p.kind)]; })
      .def("row", [](const Packed& p, int64_t row, Floats out) {
        require(row >= 0 && row < p.n && int64_t(out.size()) == p.k, "no such row, or the output has another size");
        p.row(row, out.data());
      })
      .def("linear", [](const Packed& p, Pool& pool, ConstFloats x, Floats out) {
        require(x.ndim() == 2 && int64_t(x.shape(1)) == p.k && int64_t(out.size()) == int64_t(x.shape(0)) * p.n, "x must be [t, k] and out [t, n]");
        nb::gil_scoped_release release;
        linear_forward(pool, p, x.data(), int64_t(x.shape(0)), out.data());
      });

  nb::class_<KvStore>(m, "KvStore")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, bool>(), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("capacity"), nb::arg("half"))
      .def_prop_ro("capacity", &KvStore::capacity)
      .def("copy_from", &KvStore::copy_from, nb::arg("other"), nb::arg("length"), Unlocked());

  nb::class_<Decoder>(m, "Decoder")
      .def(nb::new_(&make_decoder), nb::arg("shape"), nb::arg("embedding"), nb::arg("head"), nb::arg("final_norm"), nb::arg("ropes"),
           nb::arg("layers"), nb::arg("pool"))
      .def("forward", &forward)
      .def("logits", [](Decoder& d, ConstFloats hidden, Floats out) {
        const int64_t rows = rows_of(d, hidden);
        require(int64_t(out.size()) == rows * d.vocab(), "out must be [m, vocab]");
        nb::gil_scoped_release release;
        d.logits(hidden.data(), rows, out.data());
      })
      .def("argmax", [](Decoder& d, ConstFloats hidden, Ids ids, Floats values) {
        const int64_t rows = rows_of(d, hidden);
        require(int64_t(ids.size()) == rows && int64_t(values.size()) == rows, "ids and values must be [m]");
        nb::gil_scoped_release release;
        d.argmax(hidden.data(), rows, ids.data(), values.data());
      })
      .def("topk", &topk_dict)
      .def("timing", [](const Decoder& d) {
        nb::dict t;
        t["linear"] = d.timing().linear; t["attention"] = d.timing().attention;
        t["other"] = d.timing().other; t["head"] = d.timing().head;
        return t;
      }, "Nanoseconds since the last reset, by kind of work.")
      .def("reset_timing", &Decoder::reset_timing);

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
