"""Tasks: a LightningModule each for images, certified classification, language and recall."""
