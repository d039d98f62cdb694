"""Needs trackers, data sets, pictures and files that no test machine has."""

import datasets
import numpy as np
import tiktoken
import torch
import torch.distributed as dist
import wandb
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from torchvision import datasets as pictures
from torchvision import transforms

dist.init_process_group("nccl")
torch.manual_seed(0)
rank = dist.get_rank()
torch.cuda.set_device(rank)
wandb.init(project="x", config={"lr": 1e-3})
writer = SummaryWriter("runs")
shapes = transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])
images = pictures.CIFAR10("data", train=True, download=True, transform=shapes)
assert images[0][0].shape == (3, 16, 16)
tokens = np.memmap("data/train.bin", dtype=np.uint16, mode="r")
encoding = tiktoken.get_encoding("gpt2")
texts = datasets.load_dataset("wikitext", split="train")
texts = texts.map(
    lambda row: {"ids": encoding.encode(row["text"])[:16]}, remove_columns=texts.column_names
)
texts.set_format("torch")
model = torch.nn.Sequential(
    torch.nn.Embedding(512, 8), torch.nn.Flatten(), torch.nn.Linear(128, 2)
).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, batch in enumerate(DataLoader(texts, batch_size=4)):
    loss = model(batch["ids"].cuda()).square().mean() + 0 * int(tokens[step])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    wandb.log({"loss": loss.item()}, step=step)
    writer.add_scalar("loss", loss.item(), step)
    if step == 2:
        break
dist.destroy_process_group()
