"""Networks without a classifier, following timm's contract; each file ends with BACKBONES, name -> builder."""
