// Types of the lesson's page.

/** Fields of `vit.model.config.ViTConfig` that the lesson's forward pass needs. */
export interface Config {
  image_size: [number, number];
  patch_size: number;
  channels: number;
  dim: number;
  depth: number;
  heads: number;
  mlp_dim: number;
  prefix: string[];
  eps: number;
  norm: "before_pool" | "after_pool" | "none";
  pool: "cls" | "mean";
}

/** See `vit.images.preprocess.Preprocess`. */
export interface Preprocess {
  size: [number, number];
  resize: "squash" | "shortest";
  resize_to: number;
  interpolation: "bilinear" | "bicubic" | "lanczos";
  mean: number[];
  std: number[];
  rounding: "down" | "even";
}

/** A tensor written by `vit.lesson.weights.pack_weights`. */
export interface PackedTensor {
  name: string;
  rows: number;
  cols: number;
  rounded: boolean;
}

/** Header written by `vit.lesson.page.model_bytes`. */
export interface LessonHeader {
  name: string;
  config: Config;
  preprocess: Preprocess;
  labels: string[];
  tensors: PackedTensor[];
  middle: number;
  colormaps: string[];
  samples: { name: string; credit: string }[];
  accuracy: number | null;
}
