"""A YAML recipe → objects, or all its problems without building any.

1. `yaml_tree`: text → dicts, lists and scalars with their locations; what is wrong there
2. `resolve`: ``${variables:x}``, ``${dynamic_objs:x}`` and OmegaConf's interpolations → their values
3. `load`: a file and its includes → `RecipeFile`s
4. `targets`: dotted names → authorised objects; which of streamdata's own a recipe may name
5. `signatures`: a target → its parameters and their types
6. `build`: files → objects; `check`: files → problems, by `check_recipe`

Below the rooms that need it lies what recipes say of every source: `named_source` (name, weight, part) and `limits`
(sizes, kinds of file, commands, urls and directories).
"""
