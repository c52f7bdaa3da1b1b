// Bindings of networks: their layers, key-value stores, and the decoder.
#include "bindings.h"

#include <algorithm>

#include "decoder.h"

using namespace slimtier;

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

static void check_layer(const Shape& s, const Layer& l, int64_t width) {
  const auto shaped = [](const Weights& w, int64_t n, int64_t k) { require(w && w->n == n && w->k == k, "a weight's shape does not fit the model"); };
  const auto sized = [](const Vector& v, int64_t n) { require(v.empty() || int64_t(v.size()) == n, "a vector's size does not fit the model"); };
  shaped(l.q, s.heads * s.head_dim, width); shaped(l.k, s.kv_heads * s.head_dim, width);
  shaped(l.v, s.kv_heads * s.head_dim, width); shaped(l.o, s.hidden, s.heads * s.head_dim);
  shaped(l.gate, s.intermediate, s.hidden); shaped(l.up, s.intermediate, s.hidden); shaped(l.down, s.hidden, s.intermediate);
  require(!l.input_norm.empty() && !l.mlp_norm.empty(), "a layer needs input_norm and mlp_norm");
  for (const Vector* v : {&l.input_norm, &l.post_attention_norm, &l.mlp_norm, &l.post_mlp_norm}) sized(*v, s.hidden);
  for (const Vector* v : {&l.q_norm, &l.k_norm}) sized(*v, s.head_dim);
  sized(l.q_bias, s.heads * s.head_dim); sized(l.k_bias, s.kv_heads * s.head_dim); sized(l.v_bias, s.kv_heads * s.head_dim);
}

Network make_network(nb::dict shape, const std::vector<RopeArrays>& ropes, nb::list layers, int64_t first_width) {
  Network network{make_shape(shape), {}, {}};
  for (const auto& [cos, sin] : ropes) {
    require(cos.ndim() == 2 && int64_t(cos.shape(1)) == network.shape.head_dim / 2 && cos.size() == sin.size(), "rope tables must be [positions, head_dim / 2]");
    network.ropes.push_back({int64_t(cos.shape(0)), Vector(cos.data(), cos.data() + cos.size()), Vector(sin.data(), sin.data() + sin.size())});
  }
  require(!network.ropes.empty() && layers.size() > 0, "a network needs a rope table and a layer");
  for (nb::handle h : layers) {
    network.layers.push_back(make_layer(nb::cast<nb::dict>(h)));
    check_layer(network.shape, network.layers.back(), network.layers.size() == 1 ? first_width : network.shape.hidden);
    require(!network.layers.back().local_rope || network.ropes.size() == 2, "a layer with a local rope needs a second table");
  }
  return network;
}

std::vector<Run> make_runs(const Network& network, const ConstIds& tokens, int64_t vocab, const std::vector<KvStore*>& stores,
                           const std::vector<int64_t>& starts, const std::vector<int64_t>& counts) {
  std::vector<Run> runs;
  int64_t total = 0;
  require(stores.size() == starts.size() && starts.size() == counts.size(), "one start and count a row");
  for (size_t i = 0; i < stores.size(); ++i) {
    require(stores[i]->fits(network), "a cache was made for another network");
    if (counts[i] == 0) continue;
    require(starts[i] >= 0 && counts[i] > 0 && starts[i] + counts[i] <= std::min(stores[i]->capacity(), network.ropes[0].positions),
            "a row is longer than its cache or the model's positions");
    runs.push_back({stores[i], starts[i], counts[i]});
    total += counts[i];
  }
  require(int64_t(tokens.size()) == total, "tokens and counts disagree");
  for (size_t i = 0; i < tokens.size(); ++i) require(tokens.data()[i] >= 0 && tokens.data()[i] < vocab, "token id outside the vocabulary");
  return runs;
}

nb::dict timing_dict(const Timing& timing) {
  nb::dict t;
  t["linear"] = timing.linear; t["attention"] = timing.attention; t["other"] = timing.other; t["head"] = timing.head;
  return t;
}

static std::shared_ptr<Decoder> make_decoder(nb::dict shape, std::shared_ptr<Packed> embedding, std::shared_ptr<Packed> head,
                                             ConstFloats final_norm, std::vector<RopeArrays> ropes, nb::list layers,
                                             std::shared_ptr<Pool> pool) {
  const int64_t width = nb::cast<int64_t>(shape["hidden"]);
  require(embedding->k == width && head->k == width && int64_t(final_norm.size()) == width, "embedding, head or final norm does not fit the model");
  return std::make_shared<Decoder>(make_network(shape, ropes, layers, width), embedding, head,
                                   Vector(final_norm.data(), final_norm.data() + final_norm.size()), pool);
}

static void forward(Decoder& d, ConstIds tokens, const std::vector<KvStore*>& stores, const std::vector<int64_t>& starts,
                    const std::vector<int64_t>& counts, const std::vector<uint8_t>& attention, const std::vector<uint8_t>& mlp,
                    const std::vector<int64_t>& capture, Floats hidden, Floats features) {
  const Pass pass{tokens.data(), make_runs(d.network(), tokens, d.vocab(), stores, starts, counts), attention, mlp, capture,
                  hidden.data(), features.data()};
  const int64_t layers = d.num_layers(), size = int64_t(tokens.size()) * d.shape().hidden;
  require((attention.empty() || int64_t(attention.size()) == layers) && (mlp.empty() || int64_t(mlp.size()) == layers), "one flag a layer");
  for (int64_t layer : capture) require(layer >= 0 && layer < layers, "no such layer to capture");
  require(int64_t(hidden.size()) == size && int64_t(features.size()) == size * int64_t(capture.size()), "output size");
  nb::gil_scoped_release release;
  d.forward(pass);
}

static int64_t rows_of(const Decoder& d, const ConstFloats& hidden) {
  require(hidden.ndim() == 2 && int64_t(hidden.shape(1)) == d.shape().hidden, "hidden must be [m, hidden]");
  return int64_t(hidden.shape(0));
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

void bind_network(nb::module_& m) {
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
      .def("argmax", [](Decoder& d, ConstFloats hidden, Ids ids, Floats values, std::optional<Floats> seconds) {
        const int64_t rows = rows_of(d, hidden);
        require(int64_t(ids.size()) == rows && int64_t(values.size()) == rows && (!seconds || int64_t(seconds->size()) == rows),
                "ids, values and seconds must be [m]");
        nb::gil_scoped_release release;
        d.argmax(hidden.data(), rows, ids.data(), values.data(), seconds ? seconds->data() : nullptr);
      }, nb::arg("hidden"), nb::arg("ids"), nb::arg("values"), nb::arg("seconds").none() = nb::none())
      .def("topk", &topk_dict)
      .def("timing", [](const Decoder& d) { return timing_dict(d.timing()); })
      .def("reset_timing", &Decoder::reset_timing);
}
