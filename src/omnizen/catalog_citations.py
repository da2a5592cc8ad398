"""Where the methods come from, as BibTeX."""

ZEN = """@inproceedings{wang2025zen,
  title = {{ZEN}: Empowering Distributed Training with Sparsity-driven Data Synchronization},
  author = {Wang, Zhuang and Xu, Zhaozhuo and Xi, Jingyi and Wang, Yuke and
    Shrivastava, Anshumali and Ng, T. S. Eugene},
  booktitle = {19th USENIX Symposium on Operating Systems Design and Implementation (OSDI 25)},
  pages = {537--556}, year = {2025}, note = {arXiv:2309.13254}}"""
SPARCML = """@inproceedings{renggli2019sparcml,
  title = {{SparCML}: High-Performance Sparse Communication for Machine Learning},
  author = {Renggli, C{\\`e}dric and Ashkboos, Saleh and Aghagolzadeh, Mehdi and Alistarh, Dan and
    Hoefler, Torsten},
  booktitle = {Proceedings of the International Conference for High Performance Computing, Networking, Storage and
    Analysis (SC '19)}, year = {2019}, note = {arXiv:1802.08021}}"""
RING = """@article{patarasuk2009bandwidth,
  title = {Bandwidth optimal all-reduce algorithms for clusters of workstations},
  author = {Patarasuk, Pitch and Yuan, Xin},
  journal = {Journal of Parallel and Distributed Computing}, volume = {69}, number = {2}, year = {2009}}"""
MIXED = """@inproceedings{micikevicius2018mixed,
  title = {Mixed Precision Training},
  author = {Micikevicius, Paulius and Narang, Sharan and Alben, Jonah and others},
  booktitle = {International Conference on Learning Representations}, year = {2018}}"""
FEEDBACK = """@inproceedings{karimireddy2019error,
  title = {Error Feedback Fixes {SignSGD} and other Gradient Compression Schemes},
  author = {Karimireddy, Sai Praneeth and Rebjock, Quentin and Stich, Sebastian and Jaggi, Martin},
  booktitle = {International Conference on Machine Learning}, year = {2019}}"""
WARMUP = """@inproceedings{lin2018deep,
  title = {Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training},
  author = {Lin, Yujun and Han, Song and Mao, Huizi and Wang, Yu and Dally, William J.},
  booktitle = {International Conference on Learning Representations}, year = {2018}}"""
GRACE = """@inproceedings{xu2021grace,
  title = {{GRACE}: A Compressed Communication Framework for Distributed Machine Learning},
  author = {Xu, Hang and Ho, Chen-Yu and Abdelmoniem, Ahmed M. and Dutta, Aritra and Bergou, El Houcine and
    Karatsenidis, Konstantinos and Canini, Marco and Kalnis, Panos},
  booktitle = {IEEE International Conference on Distributed Computing Systems}, year = {2021}}"""
TOP_K = """@inproceedings{aji2017sparse,
  title = {Sparse Communication for Distributed Gradient Descent},
  author = {Aji, Alham Fikri and Heafield, Kenneth},
  booktitle = {Proceedings of the 2017 Conference on Empirical Methods in Natural Language Processing},
  year = {2017}}"""
THRESHOLD = """@inproceedings{strom2015scalable,
  title = {Scalable Distributed {DNN} Training Using Commodity {GPU} Cloud Computing},
  author = {Strom, Nikko}, booktitle = {Interspeech}, year = {2015}}"""
DEEPREDUCE = """@inproceedings{xu2021deepreduce,
  title = {{DeepReduce}: A Sparse-tensor Communication Framework for Federated Deep Learning},
  author = {Xu, Hang and Kostopoulou, Kelly and Dutta, Aritra and Li, Xin and Ntoulas, Alexandros and
    Kalnis, Panos},
  booktitle = {Advances in Neural Information Processing Systems}, volume = {34}, year = {2021}}"""
GOLOMB = """@article{golomb1966run,
  title = {Run-length encodings}, author = {Golomb, Solomon W.},
  journal = {IEEE Transactions on Information Theory}, volume = {12}, number = {3}, year = {1966}}"""
PARALLAX = """@inproceedings{kim2019parallax,
  title = {Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks},
  author = {Kim, Soojeong and Yu, Gyeong-In and Park, Hojin and Cho, Sungwoo and Jeong, Eunji and Ha, Hyeonmin and
    Lee, Sanha and Jeong, Joo Seong and Chun, Byung-Gon},
  booktitle = {Proceedings of the Fourteenth EuroSys Conference}, year = {2019}, note = {arXiv:1808.02621}}"""
PACTRAIN = """@inproceedings{wang2025pactrain,
  title = {{PacTrain}: Pruning and Adaptive Sparse Gradient Compression for Efficient Collective Communication in
    Distributed Deep Learning},
  author = {Wang, Yisu and Wu, Ruilong and Li, Xinjiao and Kutscher, Dirk},
  booktitle = {Design Automation Conference (DAC)}, year = {2025}, note = {arXiv:2505.18563}}"""
THC = """@inproceedings{li2024thc,
  title = {{THC}: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression},
  author = {Li, Minghao and Ben Basat, Ran and Vargaftik, Shay and Lao, ChonLam and Xu, Kevin and
    Mitzenmacher, Michael and Yu, Minlan},
  booktitle = {21st USENIX Symposium on Networked Systems Design and Implementation (NSDI 24)}, year = {2024}}"""
COUNT_SKETCH = """@inproceedings{charikar2002finding,
  title = {Finding Frequent Items in Data Streams},
  author = {Charikar, Moses and Chen, Kevin and Farach-Colton, Martin},
  booktitle = {International Colloquium on Automata, Languages and Programming}, year = {2002}}"""
SKETCHED_SGD = """@inproceedings{ivkin2019communication,
  title = {Communication-efficient Distributed {SGD} with Sketching},
  author = {Ivkin, Nikita and Rothchild, Daniel and Ullah, Enayat and Braverman, Vladimir and Stoica, Ion and
    Arora, Raman},
  booktitle = {Advances in Neural Information Processing Systems}, volume = {32}, year = {2019}}"""
POWERSGD = """@inproceedings{vogels2019powersgd,
  title = {{PowerSGD}: Practical Low-Rank Gradient Compression for Distributed Optimization},
  author = {Vogels, Thijs and Karimireddy, Sai Praneeth and Jaggi, Martin},
  booktitle = {Advances in Neural Information Processing Systems}, volume = {32}, year = {2019}}"""
RANDOM_K = """@inproceedings{stich2018sparsified,
  title = {Sparsified {SGD} with Memory},
  author = {Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi, Martin},
  booktitle = {Advances in Neural Information Processing Systems}, year = {2018}}"""
RANDOM_BLOCK = """@misc{eghlidi2020sparse,
  title = {Sparse Communication for Training Deep Networks},
  author = {Foroutan Eghlidi, Negar and Jaggi, Martin}, year = {2020}, note = {arXiv:2009.09271}}"""
WANGNI = """@inproceedings{wangni2018gradient,
  title = {Gradient Sparsification for Communication-Efficient Distributed Optimization},
  author = {Wangni, Jianqiao and Wang, Jialei and Liu, Ji and Zhang, Tong},
  booktitle = {Advances in Neural Information Processing Systems}, year = {2018}}"""
EXPONENTS = """@misc{zhang2025dfloat11,
  title = {70% Size, 100% Accuracy: Lossless {LLM} Compression for Efficient {GPU} Inference via
    Dynamic-Length Float},
  author = {Zhang, Tianyi and others}, year = {2025}, note = {arXiv:2504.11651}}"""
ZSTD = """@misc{rfc8878,
  title = {Zstandard Compression and the 'application/zstd' Media Type},
  author = {Collet, Yann and Kucherawy, Murray}, howpublished = {RFC 8878}, year = {2021}}"""
QSGD = """@inproceedings{alistarh2017qsgd,
  title = {{QSGD}: Communication-Efficient {SGD} via Gradient Quantization and Encoding},
  author = {Alistarh, Dan and Grubic, Demjan and Li, Jerry and Tomioka, Ryota and Vojnovic, Milan},
  booktitle = {Advances in Neural Information Processing Systems}, volume = {30}, year = {2017}}"""
TERNGRAD = """@inproceedings{wen2017terngrad,
  title = {{TernGrad}: Ternary Gradients to Reduce Communication in Distributed Deep Learning},
  author = {Wen, Wei and Xu, Cong and Yan, Feng and Wu, Chunpeng and Wang, Yandan and Chen, Yiran and Li, Hai},
  booktitle = {Advances in Neural Information Processing Systems}, volume = {30}, year = {2017}}"""
NATURAL = """@inproceedings{horvath2022natural,
  title = {Natural Compression for Distributed Deep Learning},
  author = {Horvath, Samuel and Ho, Chen-Yu and Horvath, Ludovit and Sahu, Atal Narayan and Canini, Marco and
    Richtarik, Peter},
  booktitle = {Mathematical and Scientific Machine Learning}, year = {2022}}"""
FP8 = """@misc{micikevicius2022fp8,
  title = {{FP8} Formats for Deep Learning},
  author = {Micikevicius, Paulius and Stosic, Dusan and Burgess, Neil and others},
  year = {2022}, note = {arXiv:2209.05433}}"""
MSTOPK = """@inproceedings{shi2021towards,
  title = {Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters},
  author = {Shi, Shaohuai and Zhou, Xianhao and Song, Shutao and others},
  booktitle = {Proceedings of Machine Learning and Systems}, year = {2021}, note = {arXiv:2010.10458}}"""
SIDCO = """@inproceedings{abdelmoniem2021efficient,
  title = {An Efficient Statistical-based Gradient Compression Technique for Distributed Training Systems},
  author = {Abdelmoniem, Ahmed M. and Elzanaty, Ahmed and Alouini, Mohamed-Slim and Canini, Marco},
  booktitle = {Proceedings of Machine Learning and Systems}, year = {2021}, note = {arXiv:2101.10761}}"""
SBC = """@inproceedings{sattler2019sparse,
  title = {Sparse Binary Compression: Towards Distributed Deep Learning with minimal Communication},
  author = {Sattler, Felix and Wiedemann, Simon and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  booktitle = {International Joint Conference on Neural Networks}, year = {2019}, note = {arXiv:1805.08768}}"""
STC = """@article{sattler2020robust,
  title = {Robust and Communication-Efficient Federated Learning from Non-i.i.d. Data},
  author = {Sattler, Felix and Wiedemann, Simon and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal = {IEEE Transactions on Neural Networks and Learning Systems}, volume = {31}, number = {9},
  year = {2020}}"""
DETACHED = """@inproceedings{xu2022detached,
  title = {Detached Error Feedback for Distributed {SGD} with Random Sparsification},
  author = {Xu, An and Huang, Heng},
  booktitle = {International Conference on Machine Learning}, year = {2022}, note = {arXiv:2004.05298}}"""
OMNIREDUCE = """@inproceedings{fei2021efficient,
  title = {Efficient Sparse Collective Communication and its application to Accelerate Distributed Deep Learning},
  author = {Fei, Jiawei and Ho, Chen-Yu and Sahu, Atal Narayan and Canini, Marco and Sapio, Amedeo},
  booktitle = {Proceedings of the 2021 ACM SIGCOMM Conference}, year = {2021}}"""
OK_TOPK = """@inproceedings{li2022near,
  title = {Near-Optimal Sparse Allreduce for Distributed Deep Learning},
  author = {Li, Shigang and Hoefler, Torsten},
  booktitle = {Proceedings of the 27th ACM SIGPLAN Symposium on Principles and Practice of Parallel Programming},
  year = {2022}, note = {arXiv:2201.07598}}"""
SIGNSGD = """@inproceedings{bernstein2018signsgd,
  title = {{signSGD}: Compressed Optimisation for Non-Convex Problems},
  author = {Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar and Anandkumar, Animashree},
  booktitle = {International Conference on Machine Learning}, year = {2018}}"""
