"""Looking at samples: `recipe, files or store → samples, as shown → a terminal, JSON, one HTML file, a browser`.

- `streams`: a recipe; files or a store without one → samples with their raw records → a page, or what is browsed
- `model`: what is shown of a sample, as plain values, and these as JSON
- `fields`, `tokens`: a field → what is shown of it; of tokens their texts, and what is trained of them
- `terminal`: what is shown → text
- `page`: what is shown → HTML of the templates in `web/`: a file, or the pages of a browser
- `server`: pages at 127.0.0.1
"""
