"""Networks without a classifier, with timm's interface. Each file ends with BACKBONES, name -> builder."""
